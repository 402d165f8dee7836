# SPDX-License-Identifier: Apache-2.0
"""The state table with opt-in sets on the base: every state to every other, and what is refused."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import tree
from patchkit import state, target, transaction, verify
from patchkit.errors import Refused
from patchkit.release import Release
from patchkit.state import Installation, SetState
from patchkit.verify import Level

BASE = "base"
STATES: tuple[tuple[str, ...], ...] = (
    (),
    (BASE,),
    (BASE, tree.LIMIT),
    (BASE, tree.DRAFT),
    (BASE, tree.LIMIT, tree.DRAFT),
)
NAMES = [tree.LIMIT, tree.DRAFT]


def name_of(sets: tuple[str, ...]) -> str:
    return "+".join(sets) or "pristine"


def found_in(stacked_set: Release, root: Path) -> target.Target:
    return target.in_folder(stacked_set.packages, root)


def inspect(stacked_set: Release, root: Path) -> Installation:
    return state.inspect(stacked_set, found_in(stacked_set, root))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "site-packages"


@pytest.mark.parametrize("there", STATES, ids=name_of)
def test_every_stacked_state_is_read_off_the_disk(
    stacked_set: Release, root: Path, there: tuple[str, ...]
) -> None:
    found = inspect(stacked_set, tree.write_stacked(root, there))
    assert found.applied == set(there)
    assert {status.name for status in found.begun} == set(there) - {BASE}
    assert found.state is (SetState.APPLIED if there else SetState.PRISTINE)


@pytest.mark.parametrize("names", [[], [BASE], [tree.LIMIT], [tree.DRAFT], NAMES, ["all"]], ids="+".join)
@pytest.mark.parametrize("there", STATES, ids=name_of)
def test_apply_adds_the_named_sets_and_the_base_and_takes_none_away(
    stacked_set: Release, root: Path, there: tuple[str, ...], names: list[str]
) -> None:
    tree.write_stacked(root, there)
    before = tree.rungs(root)

    outcome = transaction.apply(stacked_set, found_in(stacked_set, root), names)

    wanted = (BASE, *there, *(NAMES if names == ["all"] else names))
    assert tree.rungs(root) == tree.rungs_of(wanted)
    changed = {path for path, rung in tree.rungs_of(wanted).items() if rung != before[path]}
    assert sorted(str(change.name) for change in outcome.changes) == sorted(changed), "a file, once"


@pytest.mark.parametrize("names", [[], ["all"], [tree.LIMIT], [tree.DRAFT], NAMES], ids="+".join)
@pytest.mark.parametrize("there", STATES, ids=name_of)
def test_revert_takes_the_named_sets_away_or_all(
    stacked_set: Release, root: Path, there: tuple[str, ...], names: list[str]
) -> None:
    tree.write_stacked(root, there)
    before = tree.rungs(root)

    outcome = transaction.revert(stacked_set, found_in(stacked_set, root), names)

    stays = () if names in ([], ["all"]) else tuple(name for name in there if name not in names)
    assert tree.rungs(root) == tree.rungs_of(stays)
    changed = {path for path, rung in tree.rungs_of(stays).items() if rung != before[path]}
    assert sorted(str(change.name) for change in outcome.changes) == sorted(changed)


@pytest.mark.parametrize("there", STATES, ids=name_of)
def test_the_base_is_not_taken_away_from_under_a_set_that_stays(
    stacked_set: Release, root: Path, there: tuple[str, ...]
) -> None:
    tree.write_stacked(root, there)
    on_it = [name for name in there if name != BASE]
    if on_it:
        before = tree.snapshot(root)
        with pytest.raises(Refused, match=rf"{on_it[-1]}.* on the base, and would stay without it"):
            transaction.revert(stacked_set, found_in(stacked_set, root), [BASE])
        assert tree.snapshot(root) == before
    transaction.revert(stacked_set, found_in(stacked_set, root), [BASE, *on_it])
    assert tree.rungs(root) == tree.rungs_of(())


@pytest.mark.parametrize("names", [[], [BASE], [tree.LIMIT], [tree.DRAFT], NAMES], ids="+".join)
@pytest.mark.parametrize("there", STATES, ids=name_of)
def test_verify_passes_where_what_is_asked_for_is_there(
    stacked_set: Release, root: Path, there: tuple[str, ...], names: list[str]
) -> None:
    tree.write_stacked(root, there)
    result = verify.verify(
        stacked_set, found_in(stacked_set, root), frozenset({Level.BYTES, Level.NAMES}), names
    )
    assert result.passed is ({BASE, *names} <= set(there))
    assert result.sets == {BASE, *(names or there)}


MIXES = list(itertools.product(*(range(len(tree.contents(path))) for path in tree.STACKED)))


@pytest.mark.parametrize("at", MIXES[:: max(1, len(MIXES) // 40)], ids=str)
def test_any_mix_of_rungs_is_finished_and_undone(
    stacked_set: Release, root: Path, at: tuple[int, ...]
) -> None:
    def mix() -> None:
        tree.write_stacked(root, ())
        for path, rung in zip(tree.STACKED, at, strict=True):
            text = tree.contents(path)[rung][1]
            if text is not None:
                tree.write(root / path, text)

    mix()
    begun = set(tree.rungs(root).values()) - {"pristine", BASE}
    found = found_in(stacked_set, root)
    transaction.apply(stacked_set, found)
    assert tree.rungs(root) == tree.rungs_of((BASE, *begun))
    transaction.apply(stacked_set, found, NAMES)
    assert tree.rungs(root) == tree.rungs_of((BASE, *NAMES))

    mix()
    transaction.revert(stacked_set, found)
    assert tree.rungs(root) == tree.rungs_of(())
