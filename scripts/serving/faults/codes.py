# SPDX-License-Identifier: Apache-2.0
"""Numbers that CANN, HCCL and torch_npu give for an error, from ``codes/*.toml``.

A number alone gets its name, whose fault it usually is, and the first thing to look at. What no
public list confirms is not there; where a list gives a whole range one meaning, ``*`` and ``?``
stand for its digits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources.abc import Traversable

from serving import toml_rows
from serving.toml_rows import Column

from .fault import Fault, Severity


class Whose(Enum):
    """Whose fault it usually is."""

    CALLER = "the program that called"
    SETTINGS = "a setting of this start"
    MEMORY = "too little memory"
    RESOURCES = "too much asked of the card at once"
    PACKAGES = "packages of different versions, or one that is missing"
    CARD = "the card or its driver"
    KERNEL = "an operator, or what it was given"
    LINK = "the link between two cards or hosts"
    OTHER = "another rank"
    EARLIER = "an earlier error of this process"


_CONSEQUENCES = frozenset({Whose.OTHER, Whose.EARLIER})

FAMILY = {
    "name": Column(str),
    "pattern": Column(re.Pattern),
    "source": Column(str),
}
CODE = {
    "number": Column(str),
    "name": Column(str, required=False),
    "means": Column(str),
    "whose": Column(str, one_of=frozenset(whose.name.lower() for whose in Whose)),
    "look": Column(str),
}
LOOK = {"name": Column(str), "cure": Column(str)}
SCHEMAS = {"family": FAMILY, "code": CODE, "look": LOOK}

WORDS = (
    frozenset(
        b"rror code,rrcode,rrCode,rror_code,rr_code,ret,result,Result,status,Status,hccl,Hccl,HCCL,ERR".split(
            b","
        )
    )
    | {bytes((ord("E"), letter)) for letter in b"ABEFHIJKLOPZ"}
    | {b"E: ", b"E:", b"(E)", b"E]"}
)
"""One of them is in every line that holds a number of a family, when the line's digits are taken out."""


ALONE = frozenset((b"", b"E"))
"""What is left of a line that is nothing but a number."""


@dataclass(frozen=True)
class Family:
    """The numbers of one list. The first group of ``pattern`` that matches is the number in a line."""

    name: str
    pattern: re.Pattern[str]
    exact: Mapping[str, Fault]
    ranges: tuple[tuple[str, Fault], ...]

    def in_line(self, line: str) -> Iterator[tuple[Fault, int]]:
        """The known numbers of a line, and where each stands."""
        for match in self.pattern.finditer(line):
            if match.lastindex and (fault := self.find(match[match.lastindex])):
                yield fault, match.start(match.lastindex)

    def find(self, number: str) -> Fault | None:
        ranges = (fault for pattern, fault in self.ranges if fnmatchcase(number, pattern))
        return self.exact.get(number) or next(ranges, None)


@cache
def families() -> tuple[Family, ...]:
    """Raises BundleDamaged where a file does not follow its schema."""
    return tuple(map(_family, toml_rows.files("faults", "codes")))


def in_line(line: str) -> dict[str, tuple[Fault, int]]:
    """The known numbers of a line by the name of their row, and where each stands."""
    found: dict[str, tuple[Fault, int]] = {}
    for family in families():
        for fault, at in family.in_line(line):
            found.setdefault(fault.name, (fault, at))
    return found


def _family(file: Traversable) -> Family:
    tables = toml_rows.read(file, SCHEMAS)
    (family,) = tables["family"]
    looks = {row["name"]: row["cure"] for row in tables["look"]}
    rows = {row["number"]: _fault(family, row, looks[row["look"]]) for row in tables["code"]}
    return Family(
        name=family["name"],
        pattern=re.compile(family["pattern"]),
        exact={number: fault for number, fault in rows.items() if not _is_range(number)},
        ranges=tuple((number, fault) for number, fault in rows.items() if _is_range(number)),
    )


def _fault(family: toml_rows.Row, row: toml_rows.Row, cure: str) -> Fault:
    whose = Whose[row["whose"].upper()]
    number = row["number"]
    title = f"{number} {row['name']}" if "name" in row else number
    return Fault(
        name=f"{family['name']}-{re.sub(r'[*?]+', 'x', number).lower()}",
        severity=Severity.CONSEQUENCE if whose in _CONSEQUENCES else Severity.FATAL,
        cause=f"{title}: {row['means']}. Usually {whose.value}.",
        cure=cure,
        source=family["source"],
    )


def _is_range(number: str) -> bool:
    return "*" in number or "?" in number
