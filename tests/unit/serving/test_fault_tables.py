# SPDX-License-Identifier: Apache-2.0
"""The tables behind ``kit explain``: complete, of one form, refused in one sentence where they are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from patchkit.errors import BundleDamaged
from serving import toml_rows
from serving.faults import codes, table
from serving.faults.fault import Fault, Severity

ROW = """
[[fault]]
name = "a-name"
severity = "fatal"
signs = ["a sign"]
cause = "A cause."
cure = "a cure"
source = "a source"
"""
FAULT = Fault("a-name", Severity.FATAL, "A cause.", "a cure", "a source", ("a sign",))


def problems_of(*rows: Fault) -> list[str]:
    return list(table.problems(rows))


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (ROW.replace('cure = "a cure"\n', ""), "fault 1 has no 'cure'"),
        (ROW + 'colour = "red"\n', "fault 1 has the unknown key 'colour'"),
        (ROW.replace('"fatal"', '"awful"'), "'awful' is none of consequence, degraded, fatal, harmless"),
        (ROW.replace('["a sign"]', '"a sign"'), "fault 1, 'signs': expected a list of texts"),
        (ROW.replace('["a sign"]', "[]"), "fault 1, 'signs': expected a list of texts"),
        (ROW.replace('["a sign"]', '[""]'), "fault 1, 'signs': expected a list of texts"),
        (ROW.replace('"a cure"', '"""a\ncure"""'), "fault 1, 'cure': expected a text in one line"),
        (ROW.replace('"a cure"', "3"), "fault 1, 'cure': expected a text in one line"),
        (ROW + 'confirm = "("\n', "is no regular expression"),
        (ROW + 'general = "yes"\n', "fault 1, 'general': expected true or false"),
        (ROW + ROW.replace('source = "a source"\n', ""), "fault 2 has no 'source'"),
        ("[[row]]\n", "'row' is no table of it"),
        ("fault = 3\n", "fault is not a list of tables"),
        ("fault = [3]\n", "fault 1 is no table"),
        ("[[fault\n", "line 1"),
    ],
)
def test_a_table_that_does_not_follow_its_schema_is_refused(
    damage: str, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "memory.toml"
    file.write_text(damage)

    with pytest.raises(BundleDamaged, match=r"the kit's own table memory.toml is damaged: ") as refused:
        toml_rows.read(file, {"fault": table.SCHEMA})

    assert problem in str(refused.value)


def test_a_row_becomes_a_fault() -> None:
    (row,) = toml_rows.parse(ROW, {"fault": table.SCHEMA})["fault"]

    assert table.fault(row) == FAULT


def test_what_no_single_row_shows_is_a_problem_too() -> None:
    assert problems_of(FAULT) == []
    assert problems_of(FAULT, FAULT) == ["'a-name' is there 2 times"]
    assert problems_of(replace(FAULT, name="A name")) == ["'A name' is no name of small letters and dashes"]
    each_other = (
        replace(FAULT, explained_by=frozenset({"b"})),
        replace(FAULT, name="b", explained_by=frozenset({"a-name"})),
    )
    assert problems_of(*each_other)[0] == "'a-name' and 'b' explain each other"
    assert "explained by 'b'" in problems_of(replace(FAULT, explained_by=frozenset({"b"})))[0]
    assert "could_be and decide" in problems_of(replace(FAULT, could_be=("one", "two")))[0]
    assert "digits alone" in problems_of(replace(FAULT, signs=("507015",)))[0]


def test_every_row_of_the_kit_follows_its_schema() -> None:
    assert list(table.problems(table.faults())) == []


def test_every_family_of_numbers_follows_its_schema() -> None:
    rows = [fault for family in codes.families() for fault in (*family.exact.values(), *family.ranges)]

    assert len(rows) > 20
    names = [row.name for row in rows if isinstance(row, Fault)]
    assert len(names) == len(set(names))
    assert all(table.NAME.fullmatch(name) for name in names)
