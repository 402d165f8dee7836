# SPDX-License-Identifier: Apache-2.0
"""The table that ``npu-smi info`` prints: the cards, and who is on them. Pure: text in, values out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

# A card takes two rows: "| 0  910B3 | OK | ... |", then "| 0 | 0000:C1:00.0 | ... 3159 / 65536 |".
# In the second, chips of two dies have "chip phy-id" in front, and the last "used / total" is the
# memory that models live in. Numbers are bounded, for int() is not.
_CARD = re.compile(r"(\d{1,4})\s+(\S*[A-Za-z]\S*)", re.ASCII)
_DIE = re.compile(r"(\d{1,4})(?:\s+\d{1,4})?", re.ASCII)
_BUS = re.compile(r"[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d", re.ASCII)
_USED_OF_TOTAL = re.compile(r"(\d{1,9})\s*/\s*(\d{1,9})", re.ASCII)
_PROCESS_DIE = re.compile(r"(\d{1,4})\s+(\d{1,4})", re.ASCII)
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_VERSION = re.compile(r"\bVersion:\s*(\S{1,40})")

_PROCESS_CELLS = 4


class Family(Enum):
    """The chip families; ``device_type`` is what vllm-ascend calls the build for one."""

    A2 = "Atlas A2 (910B)"
    A3 = "Atlas A3 (910C)"
    A5 = "Ascend 950"
    P310 = "310P"
    FIRST = "the first 910 generation"
    UNKNOWN = "an unknown chip"

    @property
    def device_type(self) -> str:
        return {Family.A2: "A2", Family.A3: "A3", Family.A5: "A5", Family.P310: "_310P"}.get(self, "")


# The first that fits. A 910C reports itself as plain Ascend910, or as 910_93 with a suffix; plain
# 910, 910A, 910B and 910Pro are the first generation.
_FAMILIES = (
    (re.compile(r"910B[1-4]"), Family.A2),
    (re.compile(r"910C|910_93|Ascend910$"), Family.A3),
    (re.compile(r"310P"), Family.P310),
    (re.compile(r"950"), Family.A5),
    (re.compile(r"910"), Family.FIRST),
)


@dataclass(frozen=True)
class Chip:
    """One chip (a die, where a card has two). Memory in MiB."""

    card: int
    die: int
    name: str
    health: str
    used_mib: int
    total_mib: int

    @property
    def family(self) -> Family:
        return next((family for pattern, family in _FAMILIES if pattern.search(self.name)), Family.UNKNOWN)


@dataclass(frozen=True)
class Process:
    """A process that holds memory of a chip, as npu-smi names it. Memory in MiB."""

    card: int
    die: int
    pid: int
    name: str
    used_mib: int


@dataclass(frozen=True)
class Table:
    version: str
    chips: tuple[Chip, ...]
    processes: tuple[Process, ...]


def parse(text: str) -> Table:
    """Read what is understood of the table; every other line is passed over."""
    chips: list[Chip] = []
    processes: list[Process] = []
    above: tuple[str, str, str] | None = None
    for line in text.splitlines():
        if not line.lstrip().startswith("|"):
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) >= _PROCESS_CELLS:
            processes += _process(cells)
        elif above and len(cells) > 1 and _BUS.fullmatch(cells[1]):
            chips += _chip(above, cells)
            above = None
        elif len(cells) > 1 and (card := _CARD.fullmatch(cells[0])):
            above = (card[1], card[2], cells[1])
    version = _VERSION.search(text)
    return Table(version[1] if version else "", tuple(chips), tuple(processes))


def _chip(above: tuple[str, str, str], cells: list[str]) -> list[Chip]:
    die = _DIE.fullmatch(cells[0])
    memory = _USED_OF_TOTAL.findall(cells[-1])
    if die is None or not memory:
        return []
    card, name, health = above
    used, total = memory[-1]
    return [Chip(int(card), int(die[1]), name, health, int(used), int(total))]


def _process(cells: list[str]) -> list[Process]:
    die = _PROCESS_DIE.fullmatch(cells[0])
    numbers = (cells[1], cells[3])
    if die is None or not all(_NUMBER.fullmatch(number) for number in numbers):
        return []
    return [Process(int(die[1]), int(die[2]), int(cells[1]), cells[2], int(cells[3]))]
