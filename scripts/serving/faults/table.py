# SPDX-License-Identifier: Apache-2.0
"""The rows of ``rows/*.toml``, read and checked when they are asked for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache

from serving import toml_rows
from serving.toml_rows import Column, Row

from .fault import ANYTHING, SEVERITIES, Fault, Severity

NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")

SCHEMA = {
    "name": Column(str),
    "severity": Column(str, one_of=SEVERITIES),
    "signs": Column(list),
    "confirm": Column(re.Pattern, required=False),
    "explained_by": Column(list, required=False),
    "cause": Column(str),
    "could_be": Column(list, required=False),
    "decide": Column(str, required=False),
    "cure": Column(str),
    "source": Column(str),
    "vague": Column(bool, required=False),
    "harmless_once": Column(bool, required=False),
    "general": Column(bool, required=False),
}


@cache
def faults() -> tuple[Fault, ...]:
    """All rows.

    Raises:
        BundleDamaged: a file that does not follow the schema, or a name that is none.
    """
    found = tuple(
        fault(row)
        for file in toml_rows.files("faults", "rows")
        for row in toml_rows.read(file, {"fault": SCHEMA})["fault"]
    )
    for problem in problems(found):
        raise toml_rows.damaged("faults/rows", problem)
    return found


def fault(row: Row) -> Fault:
    """A row that follows the schema."""
    return Fault(
        name=row["name"],
        severity=Severity(row["severity"]),
        cause=row["cause"],
        cure=row["cure"],
        source=row["source"],
        signs=tuple(row["signs"]),
        confirm=re.compile(row["confirm"]) if "confirm" in row else None,
        explained_by=frozenset(row.get("explained_by", ())),
        could_be=tuple(row.get("could_be", ())),
        decide=row.get("decide", ""),
        vague=row.get("vague", False),
        harmless_once=row.get("harmless_once", False),
        general=row.get("general", False),
    )


def problems(rows: Iterable[Fault]) -> Iterator[str]:
    """What no single row shows: names twice, names that are none, several causes and nothing that decides."""
    rows = tuple(rows)
    counts = Counter(row.name for row in rows)
    yield from (f"{name!r} is there {count} times" for name, count in counts.items() if count > 1)
    for row in rows:
        if not NAME.fullmatch(row.name):
            yield f"{row.name!r} is no name of small letters and dashes"
        if unknown := row.explained_by - counts.keys() - {ANYTHING}:
            yield f"{row.name!r} is explained by {min(unknown)!r}, which is no row"
        if mutual := {other.name for other in rows if row.name in other.explained_by} & row.explained_by:
            yield f"{row.name!r} and {min(mutual)!r} explain each other"
        if any(not sign.strip("0123456789 ") for sign in row.signs):
            yield f"{row.name!r} has a sign of digits alone, which stands in any log"
        if bool(row.could_be) != bool(row.decide):
            yield f"{row.name!r} has one of could_be and decide without the other"
