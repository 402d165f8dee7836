# SPDX-License-Identifier: Apache-2.0
"""Flags and variants that people bring along from other recipes, and what each does on 910B3 here.

The table is ``flags.toml``, read and checked when it is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import PurePath
from typing import Any

from serving import toml_rows
from serving.toml_rows import Column

from . import arguments as command_line
from .arguments import Given


class Verdict(Enum):
    WORKS = "works"
    NO_EFFECT = "has no effect"
    DOES_NOT_WORK = "does not work"
    NOT_TRIED = "was not tried"


class Fate(Enum):
    """What vLLM's own parser does with a row's example."""

    PARSED = "parsed"
    UNRECOGNISED = "unrecognised"


@dataclass(frozen=True)
class Evidence:
    """Where a row is from: ``text`` stands in ``file``; with ``absent`` it is that it does not."""

    file: str
    text: str
    absent: bool = False


MODEL = "the model"
"""The flag's name that stands for the model folder, whose name may tell of a variant."""


@dataclass(frozen=True)
class Condition:
    """When a row applies. Values are compared in small letters, a word of the model's name in any."""

    flags: frozenset[str] = frozenset()
    within: frozenset[str] = frozenset()
    """The flag itself, or a key of its JSON value."""
    model: re.Pattern[str] | None = None
    """Of a word in the last part of the model's path."""
    value: re.Pattern[str] | None = None
    other_than: re.Pattern[str] | None = None

    def fits(self, flag: Given) -> bool:
        if self.model:
            return flag.name == MODEL and bool(self.model.search(PurePath(flag.value).name))
        if flag.name not in self.flags and flag.name.partition(".")[0] not in self.within:
            return False
        value = flag.value.lower()
        if self.other_than and self.other_than.fullmatch(value):
            return False
        return self.value is None or bool(self.value.fullmatch(value))


@dataclass(frozen=True)
class Row:
    """One flag or variant. ``example`` is what follows ``vllm serve`` where this row applies."""

    title: str
    condition: Condition
    verdict: Verdict
    sentence: str
    example: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    fate: Fate = Fate.PARSED
    needs_set: str = ""
    """The opt-in set without which it cannot work."""


@dataclass(frozen=True)
class Advice:
    """A row that applies to a command line. ``given`` is what it was found in."""

    given: str
    row: Row

    def __str__(self) -> str:
        return f"{self.given} {self.row.verdict.value}: {self.row.sentence}"


SCHEMA = {
    "title": Column(str),
    "flags": Column(list, required=False),
    "within": Column(list, required=False),
    "model": Column(re.Pattern, required=False),
    "value": Column(re.Pattern, required=False),
    "other_than": Column(re.Pattern, required=False),
    "verdict": Column(str, one_of=frozenset(verdict.name.lower() for verdict in Verdict)),
    "sentence": Column(str),
    "example": Column(list),
    "stands": Column(list, required=False),
    "absent": Column(list, required=False),
    "unrecognised": Column(bool, required=False),
    "needs_set": Column(str, required=False),
}


@cache
def rows() -> tuple[Row, ...]:
    """The table.

    Raises:
        BundleDamaged: the file does not follow the schema.
    """
    (file,) = toml_rows.files("start")
    found = toml_rows.read(file, {"flag": SCHEMA})["flag"]
    for row in found:
        if not row.keys() & {"flags", "within", "model"}:
            raise toml_rows.damaged(file.name, f"{row['title']!r} names neither a flag nor a model")
        if not row.keys() & {"stands", "absent"}:
            raise toml_rows.damaged(file.name, f"{row['title']!r} has no evidence")
    return tuple(map(_row, found))


def _row(row: toml_rows.Row) -> Row:
    return Row(
        title=row["title"],
        condition=Condition(
            flags=frozenset(row.get("flags", ())),
            within=frozenset(row.get("within", ())),
            model=_pattern(row, "model", r"(?i)(?<![a-z0-9])(?:{})(?![a-z0-9])"),
            value=_pattern(row, "value"),
            other_than=_pattern(row, "other_than"),
        ),
        verdict=Verdict[row["verdict"].upper()],
        sentence=row["sentence"],
        example=tuple(row["example"]),
        evidence=(*_evidence(row, "stands"), *_evidence(row, "absent")),
        fate=Fate.UNRECOGNISED if row.get("unrecognised") else Fate.PARSED,
        needs_set=row.get("needs_set", ""),
    )


def _pattern(row: toml_rows.Row, key: str, frame: str = "{}") -> re.Pattern[str] | None:
    return re.compile(frame.replace("{}", row[key])) if key in row else None


def _evidence(row: toml_rows.Row, key: str) -> Iterable[Evidence]:
    for line in row.get(key, ()):
        file, _, text = line.partition(": ")
        yield Evidence(file, text, absent=key == "absent")


def advise(arguments: Sequence[str]) -> tuple[Advice, ...]:
    """What is to be said of the words behind ``vllm serve``, in their order, each row once."""
    model = command_line.model(arguments)
    flags = [*([Given(MODEL, model)] if model else []), *command_line.given(arguments)]
    found: dict[str, Advice] = {}
    for flag in flags:
        for row in rows():
            if row.title not in found and row.condition.fits(flag):
                found[row.title] = Advice(flag.value if flag.name == MODEL else str(flag), row)
    return tuple(found.values())


def table() -> str:
    """The whole table in Markdown, for docs/flags.md."""
    lines = [
        "| flag or variant | on 910B3, this release | why, and what to use instead | read in |",
        "|" + "---|" * 4,
    ]
    for row in rows():
        files = ", ".join(dict.fromkeys(f"`{item.file}`" for item in row.evidence))
        lines.append(f"| {_coded(row.title)} | {row.verdict.value} | {row.sentence} | {files} |")
    return "\n".join(lines)


def _coded(title: str) -> str:
    """Flags in a title as code."""
    return re.sub(r"--[a-z0-9-]+", lambda match: f"`{match[0]}`", title)


def as_json(advice: Sequence[Advice]) -> list[dict[str, Any]]:
    return [
        {"given": item.given, "verdict": item.row.verdict.value, "sentence": item.row.sentence}
        for item in advice
    ]


def text(advice: Sequence[Advice]) -> str:
    """One line for each flag that the table knows."""
    return (
        "\n".join(map(str, advice)) or "none of these flags is in the table; vLLM's own parser judges them."
    )


def table_json() -> list[dict[str, str]]:
    return [{"title": row.title, "verdict": row.verdict.value, "sentence": row.sentence} for row in rows()]
