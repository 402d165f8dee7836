# SPDX-License-Identifier: Apache-2.0
"""Sets that do not stand, or not together, and installations they do not fit: one sentence each."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import tree
from patchkit import release
from patchkit.errors import BundleDamaged

HERE = f"patches/{tree.SET_ID}"
LIMIT = Path(HERE, tree.LIMIT, "manifest.toml")
MOE_BEFORE = f'before = "{tree.sha256(tree.APPLIED[tree.MOE])}"'
SENTINEL = '[[sentinel]]\npath = "{}"\ncontains = "{}"\nneeded_by = "vllm/attention.py"\n'


@pytest.fixture
def folder(stacked_bundle: Path, tmp_path: Path) -> Path:
    """A copy of the kit with the two opt-in sets, to be spoilt."""
    return shutil.copytree(stacked_bundle, tmp_path / "kit")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return tmp_path / "site-packages"


def replacing(old: str, new: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        text = (folder / LIMIT).read_text()
        assert old in text
        (folder / LIMIT).write_text(text.replace(old, new, 1))

    return spoil


def renaming(name: str, with_id: bool = True) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        if with_id:
            replacing('id = "limit"', f'id = "{name}"')(folder)
        (folder / LIMIT).parent.rename(folder / HERE / name)

    return spoil


def meeting(folder: Path) -> None:
    edits: tree.Edits = {tree.MOE: (tree.APPLIED[tree.MOE], tree.APPLIED[tree.MOE] + b"# met\r\n")}
    tree.write_opt_in(folder, "other", edits)


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (
            replacing(MOE_BEFORE, f'before = "{"0" * 64}"'),
            f"{LIMIT}: the chain of {tree.MOE} does not close, for it begins with sha256 000000000000, "
            f"and the set base leaves {tree.sha256(tree.APPLIED[tree.MOE])[:12]}",
        ),
        (
            replacing(
                tree.sha256(tree.OPT_INS[tree.LIMIT][tree.MOE][1]),
                tree.sha256(tree.PRISTINE[tree.MOE] or b""),
            ),
            f"two states of {tree.MOE} have the same sha256",
        ),
        (meeting, f"{HERE}/other/manifest.toml both change {tree.MOE}, and only one opt-in set may"),
        (replacing(tree.ATTENTION, tree.MOE), f"patches {tree.ATTENTION}, but the manifest says {tree.MOE}"),
        (replacing('does = "What limit does."', ""), "incomplete: the key 'does' is missing"),
        (replacing('does = "What limit does."', "does = 5"), "incomplete: does is 5"),
        (renaming("strange", with_id=False), "id is 'limit', in the folder of 'strange'"),
        (renaming("all"), "an opt-in set cannot be called 'all'"),
        (renaming("base"), "an opt-in set cannot be called 'base'"),
        (renaming("Limit"), "an opt-in set cannot be called 'Limit'"),
        (lambda folder: (folder / LIMIT).unlink(), f"{LIMIT} cannot be read"),
    ],
)
def test_sets_that_do_not_stand_are_refused_before_anything_is_looked_at(
    folder: Path, site: Path, spoil: Callable[[Path], None], expected: str
) -> None:
    before = tree.snapshot(tree.write_stacked(site, ("base",)))
    spoil(folder)
    with pytest.raises(BundleDamaged) as caught:
        release.load(folder, tree.SET_ID)
    assert expected in str(caught.value)
    for verb in ("apply", "revert", "status"):
        run = tree.Kit(folder)(verb, "--root", site)
        assert (run.code, expected in run.err, "nothing was changed" in run.err) == (3, True, True)
    assert tree.snapshot(site) == before


def test_a_kit_without_a_release_is_one_sentence(folder: Path, site: Path) -> None:
    tree.write_packages(site)
    shutil.rmtree(folder / "patches")
    run = tree.Kit(folder)("status", "--root", site)
    assert (run.code, "patches/ holds no release" in run.err) == (3, True)


# --- installations and wishes that do not fit -------------------------------------------


def refusal(kit: tree.Kit, site: Path, *command: str) -> str:
    before = tree.snapshot(site)
    run = kit(*command, "--root", site)
    assert run.code == 3, run.out
    assert "; nothing was changed.\nNext: " in run.err
    assert tree.snapshot(site) == before
    return run.err


@pytest.mark.parametrize("verb", ["apply", "revert", "verify", "diff", "overlay"])
def test_a_set_that_does_not_exist(stacked_kit: tree.Kit, site: Path, verb: str) -> None:
    tree.write_stacked(site, ("base",))
    message = refusal(stacked_kit, site, verb, "mpt")
    assert message.startswith(f"kit: there is no set mpt for {tree.SET_ID}; there are: base, draft, limit;")


@pytest.mark.parametrize("there", [(), ("base",)], ids=["pristine", "base"])
def test_two_sets_of_which_one_takes_away_what_the_other_needs(
    folder: Path, site: Path, there: tuple[str, ...]
) -> None:
    """A sentinel holds on the disk, and fails on the end state that the other set makes."""
    base_line = "    'new': 'new_model',"
    text = tree.APPLIED[tree.REGISTRY].replace(b"'new_model'", b"'another'")
    tree.write_opt_in(folder, "taker", {tree.REGISTRY: (tree.APPLIED[tree.REGISTRY], text)})
    shutil.rmtree(folder / HERE / tree.DRAFT)
    shutil.rmtree(folder / "overlay" / tree.SET_ID / tree.DRAFT)
    with (folder / LIMIT).open("a") as manifest:
        manifest.write(SENTINEL.format(tree.REGISTRY, base_line))
    kit = tree.Kit(folder)
    tree.write_stacked(site, there)
    taken = f"the set limit relies on {base_line!r} in {tree.REGISTRY}, and the set taker takes it away"
    assert taken in refusal(kit, site, "apply", "limit", "taker")

    assert kit("apply", "limit", "--root", site).code == 0
    assert taken in refusal(kit, site, "apply", "taker")
    assert kit("revert", "limit", "--root", site).code == 0
    assert kit("apply", "taker", "--root", site).code == 0
    assert taken in refusal(kit, site, "apply", "limit")


def test_a_set_that_needs_what_another_brings(folder: Path, site: Path) -> None:
    with (folder / LIMIT).open("a") as manifest:
        manifest.write(SENTINEL.format(tree.REGISTRY, "'draft': 'draft'"))
    kit = tree.Kit(folder)
    tree.write_stacked(site, ())
    brings = f"in {tree.REGISTRY}, which the set draft brings"
    assert brings in refusal(kit, site, "apply", "limit")
    assert kit("apply", "limit", "draft", "--root", site).code == 0
    assert brings in refusal(kit, site, "revert", "draft")
    assert kit("revert", "draft", "limit", "--root", site).code == 0
    assert tree.rungs(site) == tree.rungs_of(("base",))


@pytest.mark.parametrize(
    "command", [["apply"], ["revert"], ["revert", "limit"], ["apply", "draft"], ["diff"]]
)
def test_an_opt_in_set_is_there_and_the_base_is_drifted(
    stacked_kit: tree.Kit, site: Path, command: list[str]
) -> None:
    tree.write_stacked(site, ("base", tree.LIMIT))
    tree.write(site / tree.TOKENIZERS, b"KNOWN = {'mine'}\n")
    message = refusal(stacked_kit, site, *command)
    assert f"{tree.TOKENIZERS} is neither pristine nor applied" in message
    assert "the base is drifted, and on it stands limit" in message
    status = stacked_kit("status", "--root", site)
    assert (status.code, "drifted: 1 of 5 files" in status.out) == (1, True)


@pytest.mark.parametrize(
    "command", [["apply", "limit"], ["apply", "all"], ["revert", "limit"], ["overlay", "limit"]]
)
def test_a_file_of_an_opt_in_set_that_is_drifted_refuses_that_set(
    stacked_kit: tree.Kit, site: Path, command: list[str]
) -> None:
    tree.write_stacked(site, ("base",))
    tree.write(site / tree.ATTENTION, b"# mine\n")
    assert f"{tree.ATTENTION} is neither pristine nor applied" in refusal(stacked_kit, site, *command)


def mine(path: Path) -> None:
    path.write_bytes(b"# mine\n")


def link(path: Path) -> None:
    path.rename(path.with_name("real.py"))
    path.symlink_to("real.py")


@pytest.mark.parametrize("spoil", [mine, link, Path.unlink], ids=["drifted", "a symlink", "absent"])
def test_whoever_uses_the_base_alone_may_have_any_file_that_only_an_opt_in_set_touches(
    stacked_kit: tree.Kit, site: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(tree.write_stacked(site, ()) / tree.ATTENTION)
    before = tree.snapshot(site)
    for command, code in (
        ("apply", 0),
        ("status", 0),
        ("verify --fast", 0),
        ("apply draft", 0),
        ("revert", 0),
    ):
        run = stacked_kit(*command.split(), "--root", site)
        assert run.code == code, (command, run.err)
    assert tree.snapshot(site) == before
    assert stacked_kit("apply", "limit", "--root", site).code == 3
    assert tree.snapshot(site) == before


def test_half_an_opt_in_set_is_told_by_name_with_its_symptoms(folder: Path, site: Path) -> None:
    with (folder / LIMIT).open("a") as manifest:
        manifest.write(
            f'[[symptom]]\nwithout = ["{tree.ATTENTION}"]\nwith = ["{tree.MOE}"]\ntext = "one key too wide"\n'
        )
    kit = tree.Kit(folder)
    tree.write_stacked(site, ("base", tree.LIMIT))
    tree.write(site / tree.ATTENTION, tree.ATTENTION_TEXT)
    status = kit("status", "--root", site)
    assert status.code == 1
    assert f"limit partial: 1 of 2 files is applied; not applied: {tree.ATTENTION}." in status.out
    assert "  - one key too wide\n" in status.out
    assert kit("verify", "--fast", "--root", site).code == 1
    assert kit("apply", "--root", site).code == 0
    assert tree.rungs(site) == tree.rungs_of(("base", tree.LIMIT))
