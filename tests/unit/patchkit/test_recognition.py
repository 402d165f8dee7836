# SPDX-License-Identifier: Apache-2.0
"""Which release an installation is of: by its version strings, else by its hashes, else refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tree
from patchkit import recognition, state, target
from patchkit.release import Catalogue, Release
from patchkit.state import SetState

NAMELESS = ("0.1.dev1+g0123abc.empty", "0.1.dev1+gfedc")
FIRST, NEXT = ("0.20.2", "0.20.2rc1"), ("0.21.0", "0.21.0rc1")


@pytest.fixture
def kit(two_releases: Path) -> tree.Kit:
    return tree.Kit(two_releases)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return tmp_path / "site-packages"


def release_of(two_releases: Path, root: Path) -> Release:
    catalogue = Catalogue(two_releases)
    return recognition.release_of(catalogue, target.in_folder(catalogue.first.packages, root))


@pytest.mark.parametrize("applied", [(), tree.ORDER, tree.ORDER[:2]], ids=["pristine", "applied", "partial"])
@pytest.mark.parametrize(
    ("write", "versions", "expected"),
    [
        (tree.write_packages, FIRST, tree.SET_ID),
        (tree.write_packages, ("0.20.2+empty", "0.20.2rc1+cpu"), tree.SET_ID),
        (tree.write_packages, NAMELESS, tree.SET_ID),
        (tree.write_packages, ("0.20.2", NAMELESS[1]), tree.SET_ID),
        (tree.write_next, NEXT, tree.NEXT_ID),
        (tree.write_next, NAMELESS, tree.NEXT_ID),
        (tree.write_next, (NAMELESS[0], "0.21.0rc1"), tree.NEXT_ID),
    ],
)
def test_the_release_is_read_off_the_target(
    two_releases: Path,
    site: Path,
    write: Callable[..., Path],
    versions: tuple[str, str],
    expected: str,
    applied: tuple[str, ...],
) -> None:
    release = release_of(two_releases, write(site, applied, versions))
    assert release.id == expected
    found = state.inspect(release, target.in_folder(release.packages, site))
    assert found.state not in {SetState.DRIFTED, SetState.UNSUPPORTED}


def test_an_exact_version_reads_no_other_release(two_releases: Path, site: Path) -> None:
    tree.write_packages(site)
    catalogue = Catalogue(two_releases)
    recognition.release_of(catalogue, target.in_folder(catalogue.first.packages, site))
    assert list(catalogue._read) == [tree.SET_ID]


@pytest.mark.parametrize("write", [tree.write_packages, tree.write_next])
def test_apply_and_revert_are_those_of_the_release_that_is_there(
    kit: tree.Kit, site: Path, write: Callable[[Path], Path]
) -> None:
    before = tree.snapshot(write(site))
    applied = kit("apply", "--root", site)
    assert (applied.code, kit("verify", "--fast", "--root", site).code) == (0, 0)
    assert (site / tree.MODEL).read_bytes() == tree.APPLIED[tree.MODEL], "the shared file"
    assert kit("revert", "--root", site).code == 0
    assert tree.snapshot(site) == before


def refusal(kit: tree.Kit, site: Path, *command: str) -> str:
    before = tree.snapshot(site)
    run = kit(*command, "--root", site)
    assert run.code == 3, run.out
    assert "; nothing was changed.\nNext: " in run.err
    assert tree.snapshot(site) == before
    return run.err


def test_packages_of_two_releases_are_refused_with_both_named(kit: tree.Kit, site: Path) -> None:
    tree.write_packages(site, (), (NEXT[0], FIRST[1]))
    for verb in ("apply", "revert", "diff", "overlay"):
        assert refusal(kit, site, verb).startswith(
            f"kit: the packages are of different releases: vLLM 0.21.0 at {site}/vllm of {tree.NEXT_ID}, "
            f"vllm-ascend 0.20.2rc1 at {site}/vllm_ascend of {tree.SET_ID}; "
        )
    assert kit("status", "--root", site).code == 1
    assert kit("verify", "--fast", "--root", site).code == 1


def test_versions_of_no_release_are_refused_with_what_there_is(kit: tree.Kit, site: Path) -> None:
    tree.write_packages(site, (), ("0.19.0", "0.18.0"))
    assert refusal(kit, site, "apply") == (
        f"kit: the sets are for other releases: found vLLM 0.19.0 at {site}/vllm (wanted 0.20.2 or 0.21.0), "
        f"vllm-ascend 0.18.0 at {site}/vllm_ascend (wanted 0.20.2rc1 or 0.21.0rc1); nothing was changed.\n"
        f"Next: use an image of vllm-ascend {tree.SET_ID} or {tree.NEXT_ID}\n"
    )
    status = kit("status", "--root", site)
    assert "unsupported: the sets are for vLLM 0.20.2 and vllm-ascend 0.20.2rc1, or for vLLM 0.21.0 and" in (
        status.out
    )


def test_one_package_of_a_release_tells_what_the_other_should_be(kit: tree.Kit, site: Path) -> None:
    tree.write_next(site, (), ("0.21.0", "0.18.0"))
    message = refusal(kit, site, "apply")
    assert f"found vllm-ascend 0.18.0 at {site}/vllm_ascend (wanted 0.21.0rc1)" in message
    assert message.endswith(f"Next: use an image of vllm-ascend {tree.NEXT_ID}\n")


def test_no_version_and_files_of_no_release_are_refused_with_what_there_is(kit: tree.Kit, site: Path) -> None:
    tree.write_packages(site, (), NAMELESS)
    tree.write(site / tree.REGISTRY, b"MODELS = {}\n")
    message = refusal(kit, site, "apply")
    assert f"{tree.REGISTRY} is neither pristine nor applied" in message
    assert (
        "the version strings name no release (vLLM 0.1.dev1+g0123abc.empty and vllm-ascend 0.1.dev1+gfedc), "
        f"the files are nearest to {tree.SET_ID}, of {tree.SET_ID} and {tree.NEXT_ID}" in message
    )


def test_two_releases_with_the_same_files_and_no_version_are_refused_with_both_named(
    tmp_path: Path, site: Path
) -> None:
    folder = tree.write_bundle(tmp_path / "twins")
    tree.write_release(folder, tree.NEXT_ID, tree.base_edits())
    tree.write_packages(site, (), NAMELESS)
    message = refusal(tree.Kit(folder), site, "apply")
    assert f"the files are those of {tree.SET_ID} and of {tree.NEXT_ID} alike" in message
    assert "vLLM 0.1.dev1+g0123abc.empty and vllm-ascend 0.1.dev1+gfedc name no release" in message


@pytest.mark.parametrize("applied", [(), tree.ORDER], ids=["pristine", "applied"])
def test_a_version_string_of_one_release_over_the_files_of_another(
    kit: tree.Kit, site: Path, applied: tuple[str, ...]
) -> None:
    tree.write_next(site, applied, FIRST)
    word = "applied" if applied else "pristine"
    for verb in ("apply", "revert", "diff", "overlay"):
        message = refusal(kit, site, verb)
        assert f"the version strings name {tree.SET_ID}, and the files are those of {tree.NEXT_ID}" in message
        assert f"{tree.REGISTRY} is neither pristine nor applied" in message
        assert f": it is the {word} file of {tree.NEXT_ID}" in message
    assert kit("verify", "--fast", "--root", site).code == 1


def test_one_file_of_another_release_is_named_as_such(kit: tree.Kit, site: Path) -> None:
    tree.write_packages(site)
    tree.write(site / tree.MOE, tree.next_edits()[tree.MOE][0] or b"")
    message = refusal(kit, site, "apply")
    assert f"it is the pristine file of {tree.NEXT_ID}" in message
    assert "and the files are those of" not in message


def test_a_native_release_needs_none(kit: tree.Kit, site: Path) -> None:
    tree.write_packages(site, (), ("0.23.0", "0.23.0rc1"))
    for verb in ("status", "apply", "sets"):
        run = kit(verb, "--root", site)
        assert (run.code, "native: not needed from vLLM 0.23.0 on" in run.out) == (0, True)


def test_a_set_of_another_release_is_refused_with_where_it_is(kit: tree.Kit, site: Path) -> None:
    tree.write_next(site)
    for verb in ("apply", "revert", "verify", "diff", "overlay"):
        assert refusal(kit, site, verb, tree.LIMIT).startswith(
            f"kit: the set {tree.LIMIT} is for {tree.SET_ID}; this installation is {tree.NEXT_ID}, "
            "and for that there are: base; "
        )
