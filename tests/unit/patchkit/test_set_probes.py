# SPDX-License-Identifier: Apache-2.0
"""``verify`` runs the probe of each set that is there in the target's own interpreter."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import tree
from patchkit import release, target, verify
from patchkit.verify import Level, Result

PROBE = """
import json, sys
from pathlib import Path
answer, folder = map(Path, sys.argv[1:])
detail = f"{{sys.executable}}, {{any(folder.iterdir())}}"
answer.write_text(json.dumps([{{"check": "window", "status": "{status}", "detail": detail}}]))
"""


@pytest.fixture
def folder(stacked_bundle: Path, tmp_path: Path) -> Path:
    copy = shutil.copytree(stacked_bundle, tmp_path / "kit")
    manifest = copy / "patches" / tree.SET_ID / tree.LIMIT / "manifest.toml"
    manifest.write_text('probe = "probe.py"\n' + manifest.read_text())
    return copy


def checked(folder: Path, root: Path, probe: str, names: tuple[str, ...] = ()) -> verify.Verification:
    tree.write(folder / "patches" / tree.SET_ID / tree.LIMIT / "probe.py", probe.encode())
    sets = release.load(folder, tree.SET_ID)
    found = replace(target.in_folder(sets.packages, root), python=Path(sys.executable))
    return verify.verify(sets, found, frozenset(Level), names)


def of_imports(found: verify.Verification, name: str) -> list[tuple[str, Result]]:
    return [(c.subject, c.result) for c in found.checks if c.level is Level.IMPORTS and c.set == name]


@pytest.mark.parametrize("result", Result)
def test_what_the_probe_of_a_set_answers_is_told_under_its_name(
    folder: Path, tmp_path: Path, result: Result
) -> None:
    root = tree.write_stacked(tmp_path / "site-packages", ("base", tree.LIMIT))
    found = checked(folder, root, PROBE.format(status=result.value))
    assert of_imports(found, tree.LIMIT) == [("window", result)]
    [row] = [check for check in found.checks if check.subject == "window"]
    assert row.detail == f"{sys.executable}, False"


def test_a_probe_that_dies_is_a_failure_with_its_last_words(folder: Path, tmp_path: Path) -> None:
    root = tree.write_stacked(tmp_path / "site-packages", ("base", tree.LIMIT))
    found = checked(folder, root, "raise SystemExit('no such operator')")
    [row] = [check for check in found.checks if check.set == tree.LIMIT and check.level is Level.IMPORTS]
    assert (row.result, "no such operator" in row.detail) == (Result.FAILED, True)


def test_the_probe_of_a_set_that_is_not_there_is_not_run(folder: Path, tmp_path: Path) -> None:
    root = tree.write_stacked(tmp_path / "site-packages", ("base",))
    assert of_imports(checked(folder, root, PROBE), tree.LIMIT) == []


def test_a_set_without_a_probe_says_so(folder: Path, tmp_path: Path) -> None:
    root = tree.write_stacked(tmp_path / "site-packages", ("base", tree.DRAFT))
    found = checked(folder, root, PROBE, (tree.DRAFT,))
    assert of_imports(found, tree.DRAFT) == [("a fresh interpreter", Result.NOT_RUN)]


def test_json_names_the_set_of_each_check(folder: Path, tmp_path: Path) -> None:
    tree.write(folder / "patches" / tree.SET_ID / tree.LIMIT / "probe.py", PROBE.encode())
    root = tree.write_stacked(tmp_path / "site-packages", ("base", tree.LIMIT))
    answer = json.loads(tree.Kit(folder)("verify", "--fast", "--json", "--root", root).out)
    assert [row["set"] for row in answer["opt_in_sets"]] == [tree.LIMIT]
    assert {row.get("set", "base") for row in answer["checks"]} == {"base", tree.LIMIT}
