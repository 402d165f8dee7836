# SPDX-License-Identifier: Apache-2.0
"""The sets that the kit carries are what they say they are, of every release."""

from __future__ import annotations

import ast
import itertools
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

import tree
from patchkit import versions
from patchkit.manifest import BASE, LineEnds, Place, TargetFile
from patchkit.release import Catalogue, Release

CATALOGUE = Catalogue(tree.PROJECT)
RELEASES = [CATALOGUE.release(name) for name in CATALOGUE.ids]
PLACES = [Place(release.id, patch_set.name) for release in RELEASES for patch_set in release.sets]
FILES = [(r.id, file) for r in RELEASES for patch_set in r.sets for file in patch_set.files]

# Of the files in the published wheels and git tags.
MODELS_REGISTRY = "e753cf1c6fa11cf609d3459fd50c41316acd479b35445954d5166c99834099ea"
TOKENIZERS_REGISTRY = "1dacb3473023f3e496dee8993669ce4283f01f89589a2c91ce31db99e1b4562b"
OPS_ACTIVATION = "b0025670953d0170686e1a14b45e589930636867826992477d3c494bb95be016"
MOE_MLP = "25696c16d79097df96621c7eb0a485f18e0396362f10b31a402ba8f3f62c452a"

each_release = pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.id)
each_set = pytest.mark.parametrize("place", PLACES, ids=lambda place: place.patches)


def table(place: Place) -> dict[str, list[dict[str, str]]]:
    return tomllib.loads((tree.PROJECT / place.manifest).read_text())


def patches(place: Place) -> Iterator[Path]:
    return (tree.PROJECT / place.patches).glob("*.patch")


def test_the_first_base_has_the_five_files_and_the_hashes_upstream_published() -> None:
    base = CATALOGUE.release("v0.20.2rc1").base
    assert {(file.path.name, str(file.path.parent), file.before) for file in base.files} == {
        ("registry.py", "vllm/model_executor/models", MODELS_REGISTRY),
        ("registry.py", "vllm/tokenizers", TOKENIZERS_REGISTRY),
        ("activation.py", "vllm_ascend/ops", OPS_ACTIVATION),
        ("moe_mlp.py", "vllm_ascend/ops/fused_moe", MOE_MLP),
        ("step3p7.py", "vllm/model_executor/models", None),
    }


@each_release
def test_what_makes_the_model_reachable_is_installed_last(release: Release) -> None:
    order = [file.path for file in release.base.files]
    assert order[-1] == PurePosixPath("vllm/model_executor/models/registry.py")
    assert order.index(PurePosixPath("vllm_ascend/ops/activation.py")) < order.index(
        PurePosixPath("vllm_ascend/ops/fused_moe/moe_mlp.py")
    )


@each_release
def test_every_row_of_a_manifest_names_files_of_its_set(release: Release) -> None:
    of_base = {file.path for file in release.base.files}
    for patch_set in release.sets:
        files = {file.path for file in patch_set.files}
        assert {sentinel.needed_by for sentinel in patch_set.sentinels} <= files
        assert all(symptom.without <= files for symptom in patch_set.symptoms)
        assert all(symptom.present <= files | of_base for symptom in patch_set.symptoms)


@each_set
def test_no_patch_lies_about_without_the_manifest_naming_it(place: Place) -> None:
    found = table(place)
    assert {row["patch"] for row in found["file"] if "patch" in row} == {p.name for p in patches(place)}


def test_no_overlay_lies_about_without_a_manifest_naming_it() -> None:
    named = {
        row.get("source", f"{place.overlay}/{row['path']}")
        for place in PLACES
        for row in table(place)["file"]
        if row.get("new")
    }
    files = [path for path in (tree.PROJECT / "overlay").rglob("*") if path.is_file()]
    assert {str(path.relative_to(tree.PROJECT)) for path in files if path.suffix != ".pyc"} == named


@pytest.mark.parametrize(
    "field", ["Description: ", "\n Why: ", "\n How: ", "\nOrigin: ", "\nApplied-Upstream: ", "\nRetire: "]
)
@each_set
def test_every_patch_says_why_how_and_until_when(place: Place, field: str) -> None:
    for patch in patches(place):
        header = patch.read_bytes().partition(b"\n--- a/")[0].decode()
        assert field in header, patch.name


@pytest.mark.parametrize(("release_id", "file"), FILES, ids=lambda v: getattr(v, "owner", v))
def test_hunks_and_new_files_carry_the_line_ends_of_their_file(release_id: str, file: TargetFile) -> None:
    del release_id
    lines = file.new_text.splitlines(keepends=True) if file.new_text else []
    lines += [line for hunk in (file.diff.hunks if file.diff else ()) for line in (*hunk.old, *hunk.new)]
    is_crlf = file.line_ends is LineEnds.CRLF
    assert lines
    assert all(line.endswith(b"\r\n") == is_crlf for line in lines if line.endswith(b"\n")), file.path


def test_every_release_is_of_the_same_packages_in_versions_of_its_own() -> None:
    """So that the packages can be found before the release is known, and are of one release at most."""
    assert len({tuple(p.import_name for p in release.packages) for release in RELEASES}) == 1
    for one, other in itertools.combinations(RELEASES, 2):
        shared = [
            {versions.parse(text) for text in mine.supported}
            & {versions.parse(text) for text in theirs.supported}
            for mine, theirs in zip(one.packages, other.packages, strict=True)
        ]
        assert not all(shared), (one.id, other.id)


def compared(source: str) -> Iterator[str]:
    """Every text that a program compares something with."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare | ast.MatchValue):
            yield from (
                n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)
            )


def test_no_program_of_the_kit_asks_for_the_name_of_a_set_a_release_or_a_file() -> None:
    """Nothing but manifests knows how many there are, and what they are called."""
    names = {place.release for place in PLACES} | {place.name for place in PLACES if place.name != BASE}
    names |= {str(file.path) for _, file in FILES}
    for path in [tree.PROJECT / "scripts" / "kit", *(tree.PROJECT / "scripts").rglob("*.py")]:
        assert names.isdisjoint(compared(path.read_text())), path
