# SPDX-License-Identifier: Apache-2.0
"""Every row of the state table, and what a drifted file is told about."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import tree
from patchkit import drift as drift_of
from patchkit import state, target, transaction, verify
from patchkit.errors import Refused
from patchkit.release import Release
from patchkit.state import FileState, Installation, SetState
from patchkit.verify import Level, Result


def inspect(small_set: Release, root: Path) -> Installation:
    return state.inspect(small_set, target.in_folder(small_set.packages, root))


def installation(
    tmp_path: Path, applied: tuple[str, ...], versions: tuple[str, str] = ("0.20.2", "0.20.2rc1")
) -> Path:
    return tree.write_packages(tmp_path / "site-packages", applied, versions)


SUBSETS = [subset for n in range(6) for subset in itertools.combinations(tree.ORDER, n)]


@pytest.mark.parametrize("applied", SUBSETS, ids=lambda s: "+".join(Path(p).stem for p in s) or "none")
def test_every_mix_of_pristine_and_applied_is_known_finished_and_undone(
    small_set: Release, tmp_path: Path, applied: tuple[str, ...]
) -> None:
    root = installation(tmp_path, applied)
    expected = {0: SetState.PRISTINE, 5: SetState.APPLIED}.get(len(applied), SetState.PARTIAL)
    assert inspect(small_set, root).state is expected

    found = target.in_folder(small_set.packages, root)
    assert len(transaction.apply(small_set, found).changes) == 5 - len(applied)
    assert set(tree.states(root).values()) == {"applied"}

    tree.write_packages(root, applied)
    for path in tree.ORDER:
        if path not in applied and tree.PRISTINE[path] is None:
            (root / path).unlink()
    assert len(transaction.revert(small_set, found).changes) == len(applied)
    assert set(tree.states(root).values()) == {"pristine"}


def test_partial_names_what_is_missing_and_the_error_the_user_would_see(
    small_set: Release, tmp_path: Path
) -> None:
    found = inspect(small_set, installation(tmp_path, (tree.ACTIVATION, tree.MOE)))
    assert {str(s.file.path) for s in found.base.in_state(FileState.PRISTINE)} == {
        tree.TOKENIZERS,
        tree.MODEL,
        tree.REGISTRY,
    }
    assert [s.text for s in found.symptoms] == [
        "'Processor' object has no attribute '_get_num_multimodal_tokens'"
    ]


def test_registered_without_its_module_is_another_message(small_set: Release, tmp_path: Path) -> None:
    rest = tuple(path for path in tree.ORDER if path != tree.MODEL)
    found = inspect(small_set, installation(tmp_path, rest))
    assert [s.text for s in found.symptoms] == [
        "registered, but its module fails to import: No module named new_model"
    ]


@pytest.mark.parametrize("verb", [transaction.apply, transaction.revert])
@pytest.mark.parametrize("applied", [(), tree.ORDER], ids=["pristine", "applied"])
@pytest.mark.parametrize("path", tree.ORDER)
def test_one_drifted_file_refuses_both_verbs_and_changes_nothing(
    small_set: Release, tmp_path: Path, path: str, applied: tuple[str, ...], verb: object
) -> None:
    root = installation(tmp_path, applied)
    tree.write(root / path, b"# somebody's own\n" + (tree.PRISTINE[path] or b""))
    before = tree.snapshot(root)
    assert inspect(small_set, root).state is SetState.DRIFTED

    with pytest.raises(
        Refused, match=r"neither pristine nor applied.*expected sha256.*found.*nothing was changed"
    ):
        verb(small_set, target.in_folder(small_set.packages, root))  # type: ignore[operator]
    assert tree.snapshot(root) == before


def test_a_missing_upstream_file_is_drift(small_set: Release, root: Path) -> None:
    (root / tree.REGISTRY).unlink()
    found = inspect(small_set, root)
    assert found.state is SetState.DRIFTED
    assert [s.state for s in found.base.in_state(FileState.MISSING)] == [FileState.MISSING]


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        (("0.20.2+empty", "0.20.2rc1"), SetState.PRISTINE),
        (("0.20.2+cpu", "0.20.2rc1"), SetState.PRISTINE),
        (("0.1.dev1+g0123abc.empty", "0.1.dev1+gfedc"), SetState.PRISTINE),
        (("no version at all", "0.20.2rc1"), SetState.PRISTINE),
        (("0.20.1", "0.20.2rc1"), SetState.UNSUPPORTED),
        (("0.21.0", "0.20.2rc1"), SetState.UNSUPPORTED),
        (("0.20.2", "0.18.0"), SetState.UNSUPPORTED),
        (("0.20.2", "0.20.2"), SetState.UNSUPPORTED),
        (("0.20.2rc1", "0.20.2rc1"), SetState.UNSUPPORTED),
        (("0.20.2.post1", "0.20.2rc1"), SetState.UNSUPPORTED),
        (("0.23.0", "0.20.2rc1"), SetState.UNSUPPORTED),
        (("0.22.9", "0.23.0rc1"), SetState.UNSUPPORTED),
        (("0.23.0", "0.23.0rc1"), SetState.NATIVE),
        (("0.24.1", "0.24.0"), SetState.NATIVE),
        (("1.0", "0.100.0"), SetState.NATIVE),
    ],
)
def test_versions_that_name_a_release_decide(
    small_set: Release, tmp_path: Path, versions: tuple[str, str], expected: SetState
) -> None:
    assert inspect(small_set, installation(tmp_path, (), versions)).state is expected


@pytest.mark.parametrize("verb", [transaction.apply, transaction.revert])
def test_another_release_is_refused_with_found_and_wanted(
    small_set: Release, tmp_path: Path, verb: object
) -> None:
    root = installation(tmp_path, (), ("0.20.1", "0.18.0"))
    before = tree.snapshot(root)
    with pytest.raises(
        Refused,
        match=r"vLLM 0\.20\.1 at .*\(wanted 0\.20\.2\), vllm-ascend 0\.18\.0 .*\(wanted 0\.20\.2rc1\)",
    ):
        verb(small_set, target.in_folder(small_set.packages, root))  # type: ignore[operator]
    assert tree.snapshot(root) == before


@pytest.mark.parametrize("verb", [transaction.apply, transaction.revert])
def test_a_native_release_needs_nothing_and_may_lack_the_files(
    small_set: Release, tmp_path: Path, verb: object
) -> None:
    root = installation(tmp_path, (), ("0.23.0", "0.23.0rc1"))
    (root / tree.REGISTRY).unlink()
    before = tree.snapshot(root)
    outcome = verb(small_set, target.in_folder(small_set.packages, root))  # type: ignore[operator]
    assert outcome.changes == ()
    assert tree.snapshot(root) == before


@pytest.mark.parametrize(
    ("applied", "versions", "expected"),
    [
        ((), ("0.20.2", "0.20.2rc1"), False),
        (tree.ORDER, ("0.20.2", "0.20.2rc1"), True),
        (tree.ORDER[:2], ("0.20.2", "0.20.2rc1"), False),
        (tree.ORDER, ("0.20.1", "0.20.2rc1"), False),
        ((), ("0.23.0", "0.23.0rc1"), True),
    ],
    ids=["pristine", "applied", "partial", "unsupported", "native"],
)
def test_verify_passes_only_what_is_applied_or_native(
    small_set: Release, tmp_path: Path, applied: tuple[str, ...], versions: tuple[str, str], expected: bool
) -> None:
    found = target.in_folder(small_set.packages, installation(tmp_path, applied, versions))
    assert verify.verify(small_set, found, frozenset({Level.BYTES})).passed is expected


def test_verify_fails_a_drifted_file_with_expected_and_found(small_set: Release, tmp_path: Path) -> None:
    root = installation(tmp_path, tree.ORDER)
    tree.write(root / tree.REGISTRY, b"MODELS = {}\n")
    result = verify.verify(small_set, target.in_folder(small_set.packages, root), frozenset({Level.BYTES}))
    failed = [check for check in result.checks if check.result is Result.FAILED]
    assert [check.subject for check in failed] == [tree.REGISTRY]
    assert tree.sha256(tree.APPLIED[tree.REGISTRY])[:12] in failed[0].detail
    assert tree.sha256(b"MODELS = {}\n")[:12] in failed[0].detail


# --- what a drifted file is told ------------------------------------------------------


def drift(small_set: Release, root: Path, path: str, text: bytes) -> str:
    tree.write(root / path, text)
    [found] = inspect(small_set, root).base.in_state(FileState.DRIFTED)
    return drift_of.explain(found, small_set)


def test_other_line_ends_are_named_as_such(small_set: Release, root: Path) -> None:
    lf = (tree.PRISTINE[tree.MOE] or b"").replace(b"\r\n", b"\n")
    assert (
        drift(small_set, root, tree.MOE, lf)
        == "the same text as the pristine file, with other line ends (LF)"
    )


def test_other_line_ends_of_an_applied_file_are_named_as_such(small_set: Release, root: Path) -> None:
    crlf = tree.APPLIED[tree.REGISTRY].replace(b"\n", b"\r\n")
    expected = "the same text as the applied file, with other line ends (CRLF)"
    assert drift(small_set, root, tree.REGISTRY, crlf) == expected


def test_a_differing_context_line_is_shown(small_set: Release, root: Path) -> None:
    text = (tree.PRISTINE[tree.REGISTRY] or b"").replace(b"'older'", b"'oldest'")
    assert drift(small_set, root, tree.REGISTRY, text).startswith(
        "line 3: expected \"'older': 'older_model',\", found"
    )


def test_a_second_anchor_line_does_not_draw_the_edit_to_it(small_set: Release, root: Path) -> None:
    text = b"    'old': 'old_model',\n" + (tree.PRISTINE[tree.REGISTRY] or b"")
    assert drift(small_set, root, tree.REGISTRY, text).startswith("line 1: expected 'MODELS = {', found")


def test_a_half_followed_guide_is_recognised(small_set: Release, root: Path) -> None:
    text = (tree.PRISTINE[tree.MOE] or b"").replace(b"import silu", b"import silu, step")
    assert drift(small_set, root, tree.MOE, text).startswith("edited by hand: line 1 is already")


def test_a_change_far_from_the_edits_is_named_as_such(small_set: Release, root: Path) -> None:
    text = (tree.PRISTINE[tree.ACTIVATION] or b"").replace(b"def silu", b"def SILU")
    assert "elsewhere" in drift(small_set, root, tree.ACTIVATION, text)


def test_a_foreign_file_in_the_place_of_the_new_one(small_set: Release, root: Path) -> None:
    assert (
        drift(small_set, root, tree.MODEL, b"class Mine: ...\n") == "another file of that name, not the kit's"
    )


def test_a_neighbour_that_lacks_what_the_patch_needs_refuses_apply_only(
    small_set: Release, tmp_path: Path
) -> None:
    root = installation(tmp_path, (tree.REGISTRY,))
    tree.write(root / tree.NEIGHBOUR, b"class Renamed: ...\n")
    found = target.in_folder(small_set.packages, root)
    with pytest.raises(Refused, match=r"old_model\.py does not contain 'class OldModel:'"):
        transaction.apply(small_set, found)
    assert not verify.verify(small_set, found, frozenset({Level.BYTES})).passed
    transaction.revert(small_set, found)
    assert set(tree.states(root).values()) == {"pristine"}
