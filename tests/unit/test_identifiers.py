# SPDX-License-Identifier: Apache-2.0
"""The pages that document names and severities, held against what the kit knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.faults.fault import SEVERITIES
from unit import identifiers

BOTH = pytest.mark.parametrize("page", identifiers.PAGES, ids=lambda page: page.name)


@BOTH
def test_the_tables_of_the_page_are_those_of_the_kit(page: Path) -> None:
    text = page.read_text("utf-8")

    assert identifiers.filled(text) == text, "run: python tests/unit/identifiers.py"
    for name, table in identifiers.tables().items():
        assert f"<!-- {name} -->\n{table}\n<!-- end of {name} -->" in text


@BOTH
def test_the_page_explains_every_severity(page: Path) -> None:
    rows = [
        line.split("|")[1].strip() for line in page.read_text("utf-8").splitlines() if line.count("|") == 4
    ]

    assert set(rows) >= SEVERITIES


def test_no_name_means_two_things() -> None:
    names = identifiers.tables()

    explained = {line.split("`")[1] for line in names["explain"].splitlines()[2:]}
    looked_at = {line.split("`")[1] for line in names["doctor"].splitlines()[2:]}
    assert len(explained) > 90
    assert explained & looked_at == {"visible-devices"}  # of the same variable, before and after the start
