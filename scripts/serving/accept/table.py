# SPDX-License-Identifier: Apache-2.0
"""The table of the phases, ``phases.toml``: what each proves, how long it takes, when it runs."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import resources

from serving import toml_rows
from serving.toml_rows import Column, Row

from .phase import Level, Phase


class Need(Enum):
    NOTHING = "nothing"
    SERVER = "server"
    DATA = "data"


_SCHEMA = {
    "name": Column(str),
    "title": Column(str),
    "title_zh": Column(str),
    "level": Column(str, one_of=frozenset(level.value for level in Level)),
    "needs": Column(str, one_of=frozenset(need.value for need in Need)),
    "gate": Column(bool, required=False),
    "always": Column(bool, required=False),
    "minutes": Column(int),
    "starts": Column(int),
    "disk_mib": Column(int),
    "proves": Column(str),
    "proves_zh": Column(str),
}


@dataclass(frozen=True)
class PhaseRow:
    """One phase. Minutes, starts of the whole model and MiB on the disk are estimates."""

    number: int
    name: str
    title: str
    title_zh: str
    level: Level
    needs: Need
    gate: bool
    always: bool
    minutes: int
    starts: int
    disk_mib: int
    proves: str
    proves_zh: str

    @property
    def folder(self) -> str:
        """Its folder's name within the run's."""
        return f"{self.number:02}-{self.name}"

    def titled(self, chinese: bool) -> str:
        return self.title_zh if chinese else self.title

    def load(self) -> Phase:
        """The function that does it: ``steps`` of the module of its name."""
        found: Phase = importlib.import_module(f".{self.name}", __package__).steps
        return found


@cache
def phases() -> tuple[PhaseRow, ...]:
    """All of them, in order.

    Raises:
        BundleDamaged: the table does not follow its schema, or has a name twice.
    """
    file = resources.files("serving").joinpath("accept", "phases.toml")
    rows = toml_rows.read(file, {"phase": _SCHEMA})["phase"]
    names = [row["name"] for row in rows]
    for name in names:
        if names.count(name) > 1:
            raise toml_rows.damaged(file.name, f"{name!r} is there twice")
    return tuple(_phase(number, row) for number, row in enumerate(rows, 1))


def _phase(number: int, row: Row) -> PhaseRow:
    values = dict(row) | {"level": Level(row["level"]), "needs": Need(row["needs"])}
    return PhaseRow(number=number, **({"gate": False, "always": False} | values))
