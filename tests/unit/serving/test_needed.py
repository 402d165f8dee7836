# SPDX-License-Identifier: Apache-2.0
"""A start that needs opt-in sets: by its profile's head, or by a flag in the table."""

from __future__ import annotations

from pathlib import Path

import pytest

import tree
from patchkit import release, state, target
from patchkit.errors import Refused
from patchkit.release import Release
from patchkit.state import Installation
from serving.start import flags, needed, profiles

ROWS = [row for row in flags.rows() if row.needs_set]
DRAFTS = "# Drafts.\n# needs-sets: draft\n"
BOTH = "# needs-sets: draft limit\n"
MTP = ("m", "-sc", '{"method": "mtp", "num_speculative_tokens": 3}')


def installed(site: Path, found: Release, sets: tuple[str, ...]) -> Installation:
    root = tree.write_stacked(site / "-".join(sets), sets)
    return state.inspect(found, target.in_folder(found.packages, root))


def refusal(found: Installation, head: str, *words: str) -> Refused:
    with pytest.raises(Refused) as refused:
        needed.require_sets(found, profiles.parse("mine", head), words, "--root X")
    return refused.value


def test_a_profile_whose_sets_are_there_starts(stacked_set: Release, tmp_path: Path) -> None:
    found = installed(tmp_path, stacked_set, ("base", tree.DRAFT, tree.LIMIT))
    needed.require_sets(found, profiles.parse("mine", BOTH), ("m",), "")


def test_a_profile_whose_set_is_not_applied(stacked_set: Release, tmp_path: Path) -> None:
    found = refusal(installed(tmp_path, stacked_set, ("base", tree.LIMIT)), DRAFTS)
    assert found.what == "the profile mine needs the set draft, which is not applied"
    assert found.next_step == "{kit} apply draft --root X"


def test_of_several_sets_the_one_that_is_missing_is_named(stacked_set: Release, tmp_path: Path) -> None:
    assert "the set limit" in refusal(installed(tmp_path, stacked_set, ("base", tree.DRAFT)), BOTH).what


def test_a_profile_for_a_set_that_the_release_does_not_have(small_set: Release, tmp_path: Path) -> None:
    found = refusal(installed(tmp_path, small_set, ("base",)), DRAFTS)
    assert found.what == f"the profile mine needs the set draft, which there is not for {tree.SET_ID}"
    assert "bf16-tp8, agent" in found.next_step


def test_a_release_that_has_the_model_natively_has_no_sets(stacked_set: Release, tmp_path: Path) -> None:
    root = tree.write_packages(tmp_path / "native", versions=("0.99.0", "0.99.0"))
    found = state.inspect(stacked_set, target.in_folder(stacked_set.packages, root))
    assert "which there is not for vLLM 0.99.0 and vllm-ascend 0.99.0" in refusal(found, DRAFTS).what


@pytest.fixture
def with_mtp(tmp_path: Path) -> Release:
    """A release that has a set of the name that the table gives."""
    folder = tree.write_bundle(tmp_path / "kit")
    tree.write_opt_in(folder, "mtp", tree.OPT_INS[tree.DRAFT])
    return release.load(folder, tree.SET_ID)


@pytest.mark.parametrize(
    "words",
    [
        MTP,
        ("m", '--speculative_config={"method": "mtp", "num_speculative_tokens": 1}'),
        (
            "m",
            "--speculative-config.method",
            "step3p5_mtp",
            "--speculative-config.num_speculative_tokens",
            "2",
        ),
    ],
)
def test_a_flag_that_needs_a_set_is_refused_without_it(
    words: tuple[str, ...], with_mtp: Release, tmp_path: Path
) -> None:
    found = refusal(installed(tmp_path, with_mtp, ("base",)), "", *words)
    assert found.what.endswith("mtp needs the set mtp, which is not applied")
    assert found.what.startswith("--speculative-config.method ")
    assert found.next_step == "{kit} apply mtp --root X"


def test_a_flag_whose_set_is_applied_and_one_that_needs_none(with_mtp: Release, tmp_path: Path) -> None:
    root = tree.write_stacked(tmp_path / "site", ("base", tree.DRAFT))
    there = state.inspect(with_mtp, target.in_folder(with_mtp.packages, root))
    bare = profiles.parse("mine", "")
    needed.require_sets(there, bare, MTP, "")
    none = ("m", "--max-num-seqs", "8", "--speculative-config", '{"method": "ngram"}')
    needed.require_sets(installed(tmp_path, with_mtp, ("base",)), bare, none, "")


def test_a_flag_for_a_set_that_the_release_does_not_have(small_set: Release, tmp_path: Path) -> None:
    found = refusal(installed(tmp_path, small_set, ("base",)), "", *MTP)
    assert found.next_step == "leave --speculative-config.method mtp out"


def test_the_sets_that_flags_and_profiles_need_are_sets_of_the_kit() -> None:
    catalogue = release.Catalogue(tree.PROJECT)
    known = {opt_in.name for name in catalogue.ids for opt_in in catalogue.release(name).opt_ins}
    asked = {row.needs_set for row in ROWS}
    asked |= {name for profile in profiles.names() for name in profiles.load(profile).needs.sets}
    assert ROWS
    assert asked <= known
