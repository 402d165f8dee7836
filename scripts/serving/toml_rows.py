# SPDX-License-Identifier: Apache-2.0
"""Tables of knowledge that lie beside the code as TOML: read and checked on use, also inside ``kit.pyz``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from patchkit.errors import BundleDamaged

Row = Mapping[str, Any]

_AGAIN = "copy the kit again from where you have it"


@dataclass(frozen=True)
class Column:
    """One key of a row: ``str``, ``bool``, an ``int`` from 0 on, a ``list`` of texts, or a ``re.Pattern``
    written as text.
    """

    kind: type
    required: bool = True
    one_of: frozenset[str] = frozenset()
    """The only words that it may be, where it is one of a few."""


Schema = Mapping[str, Column]


def files(*folder: str) -> tuple[Traversable, ...]:
    """The tables of a folder below ``serving``, by name."""
    place = resources.files("serving").joinpath(*folder)
    return tuple(sorted((f for f in place.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name))


def read(file: Traversable, schemas: Mapping[str, Schema]) -> dict[str, tuple[Row, ...]]:
    """The rows of a file, by the name of their table, checked against the schema of that name.

    Raises:
        BundleDamaged: not TOML, a table that no schema has, or a row that does not follow its schema.
    """
    try:
        return parse(file.read_bytes().decode("utf-8"), schemas)
    except (OSError, KeyError, ValueError) as error:
        raise damaged(file.name, str(error)) from error


def damaged(name: str, problem: str) -> BundleDamaged:
    return BundleDamaged(f"the kit's own table {name} is damaged: {problem}", _AGAIN)


def parse(text: str, schemas: Mapping[str, Schema]) -> dict[str, tuple[Row, ...]]:
    """The same for a text.

    Raises:
        ValueError: says what is wrong, and in which row.
    """
    found = tomllib.loads(text)
    if unknown := found.keys() - schemas.keys():
        raise ValueError(f"{min(unknown)!r} is no table of it")
    return {name: tuple(_rows(name, found.get(name, []), schema)) for name, schema in schemas.items()}


def _rows(table: str, rows: Any, schema: Schema) -> Iterator[Row]:
    if not isinstance(rows, list):
        raise ValueError(f"{table} is not a list of tables")
    for number, row in enumerate(rows, 1):
        yield _row(f"{table} {number}", row, schema)


def _row(where: str, row: Any, schema: Schema) -> Row:
    if not isinstance(row, dict):
        raise ValueError(f"{where} is no table")
    if unknown := row.keys() - schema.keys():
        raise ValueError(f"{where} has the unknown key {min(unknown)!r}")
    for key, column in schema.items():
        if key not in row:
            if column.required:
                raise ValueError(f"{where} has no {key!r}")
        elif problem := _problem(row[key], column):
            raise ValueError(f"{where}, {key!r}: {problem}")
    return row


def _problem(value: Any, column: Column) -> str:
    """What is wrong with a value; "" where nothing is."""
    if column.kind is bool:
        return "" if isinstance(value, bool) else "expected true or false"
    if column.kind is int:
        is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        return "" if is_count else "expected a number from 0 on"
    if column.kind is list:
        texts = isinstance(value, list) and value and all(isinstance(item, str) and item for item in value)
        return "" if texts else "expected a list of texts"
    if not isinstance(value, str) or not value or "\n" in value:
        return "expected a text in one line"
    if column.one_of and value not in column.one_of:
        return f"{value!r} is none of {', '.join(sorted(column.one_of))}"
    return _pattern_problem(value) if column.kind is re.Pattern else ""


def _pattern_problem(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        return f"{text!r} is no regular expression ({error})"
    return ""
