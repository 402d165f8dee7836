# SPDX-License-Identifier: Apache-2.0
"""The pages that document names and severities, held against what the kit knows."""

from __future__ import annotations

import re
from itertools import combinations
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


def test_no_two_verbs_give_their_findings_the_same_name() -> None:
    for (one, names), (other, others) in combinations(identifiers.findings().items(), 2):
        assert names & others == set(), f"{one} and {other}"


def test_names_of_findings_are_kebab_case() -> None:
    for names in identifiers.findings().values():
        assert [name for name in names if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)] == []
