# SPDX-License-Identifier: Apache-2.0
"""A failure, and a kill, at every file-system step on the way from each stacked state to each other.

The sets are as small as sets with every kind of file can be: one that the base and an
opt-in set edit, a new one of the base, one that an opt-in set alone edits.
"""

from __future__ import annotations

import errno
import itertools
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tree
from patchkit import lock, release, target, transaction
from patchkit.errors import NotPutBack, PutBack, Refused
from patchkit.manifest import BASE
from patchkit.plan import Wish
from patchkit.release import Release
from patchkit.state import Installation
from patchkit.transaction import Outcome
from unit.patchkit.faults import Steps, fail, in_child, sources, temporaries

Sets = frozenset[str]
BASE_EDITS: tree.Edits = {
    tree.MOE: (tree.PRISTINE[tree.MOE], tree.APPLIED[tree.MOE]),
    tree.MODEL: (None, tree.APPLIED[tree.MODEL]),
}
OPT_INS: dict[str, tree.Edits] = {
    tree.LIMIT: {tree.MOE: tree.OPT_INS[tree.LIMIT][tree.MOE]},
    tree.DRAFT: {tree.TOKENIZERS: (tree.PRISTINE[tree.TOKENIZERS], tree.APPLIED[tree.TOKENIZERS])},
}
RUNGS: dict[str, tuple[tuple[str, bytes | None], ...]] = {
    tree.MOE: (
        ("", tree.PRISTINE[tree.MOE]),
        (BASE, tree.APPLIED[tree.MOE]),
        (tree.LIMIT, OPT_INS[tree.LIMIT][tree.MOE][1]),
    ),
    tree.MODEL: (("", None), (BASE, tree.APPLIED[tree.MODEL])),
    tree.TOKENIZERS: (
        ("", tree.PRISTINE[tree.TOKENIZERS]),
        (tree.DRAFT, tree.APPLIED[tree.TOKENIZERS]),
    ),
}
STATES: tuple[Sets, ...] = (
    frozenset(),
    frozenset({BASE}),
    frozenset({BASE, tree.LIMIT}),
    frozenset({BASE, tree.DRAFT}),
    frozenset({BASE, tree.LIMIT, tree.DRAFT}),
)
WAYS = list(itertools.permutations(STATES, 2))


@pytest.fixture(scope="module")
def smallest(tmp_path_factory: pytest.TempPathFactory) -> Release:
    folder = tmp_path_factory.mktemp("smallest")
    tree.write_set(folder, tree.SET_ID, tree.manifest_text(edits=BASE_EDITS), BASE_EDITS)
    for name, edits in OPT_INS.items():
        tree.write_opt_in(folder, name, edits)
    return release.load(folder, tree.SET_ID)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "WAIT_S", 0.0)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """In memory where that is to be had: thousands of runs, each with its fsyncs."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path / "root"
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder, "root")


def contents(sets: Sets) -> dict[str, bytes | None]:
    return {path: rungs[sum(name in sets for name, _ in rungs)][1] for path, rungs in RUNGS.items()}


def on_disk(root: Path) -> dict[str, bytes | None]:
    return {path: (root / path).read_bytes() if (root / path).exists() else None for path in RUNGS}


def prepare(root: Path, sets: Sets) -> dict[str, bytes]:
    """The installation before the run, with byte code that belongs to no source."""
    for path, text in contents(sets).items():
        if text is None:
            (root / path).unlink(missing_ok=True)
        else:
            tree.write(root / path, text)
    stem = Path(tree.MOE).stem
    tree.write((root / tree.MOE).parent / f"__pycache__/{stem}.cpython-311.pyc", b"stale, of no source")
    return tree.snapshot(root)


def go(smallest: Release, root: Path, sets: Sets) -> Outcome:
    """Bring the installation to exactly these sets, whatever is there."""

    def wish_for(found: Installation) -> Wish:
        return Wish(sets, concerned=frozenset(status.name for status in found.sets), raised=sets)

    return transaction.bring(smallest, target.in_folder(smallest.packages, root), wish_for)


def steps_of(smallest: Release, root: Path, way: tuple[Sets, Sets]) -> int:
    prepare(root, way[0])
    steps = Steps()
    with steps.counted():
        go(smallest, root, way[1])
    assert on_disk(root) == contents(way[1])
    return len(steps.names)


def each_step(smallest: Release, root: Path) -> Iterator[tuple[tuple[Sets, Sets], int]]:
    tree.write_packages(root)
    for way in WAYS:
        for at in range(1, steps_of(smallest, root, way) + 1):
            yield way, at


def require_whole(root: Path) -> None:
    for path, text in on_disk(root).items():
        assert text in [content for _, content in RUNGS[path]], f"{path} is torn"


def require_next_run_finishes(smallest: Release, root: Path, sets: Sets) -> None:
    go(smallest, root, sets)
    assert on_disk(root) == contents(sets)
    assert temporaries(root) == []


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_one_failure_at_every_step_leaves_all_or_nothing(
    smallest: Release, root: Path, number: int, note: Callable[[str], None]
) -> None:
    total, seen = 0, set()
    for (start, goal), at in each_step(smallest, root):
        before, steps = prepare(root, start), Steps(fail(number), at)
        outcome = run(steps, smallest, root, goal)
        total, where = total + 1, (sorted(start), sorted(goal), at, steps.names[-1])
        seen.add(type(outcome))

        require_whole(root)
        if isinstance(outcome, Outcome):
            assert on_disk(root) == contents(goal), where
        else:
            assert sources(tree.snapshot(root)) == sources(before), where
        assert not isinstance(outcome, NotPutBack), where
        if temporaries(root):
            assert steps.names[at - 1] == "os.unlink", where
        require_next_run_finishes(smallest, root, goal)
    assert {Refused, PutBack, Outcome} <= seen
    note(
        f"fault injection, stacked sets: {errno.errorcode[number]} at each of {total} steps "
        f"of {len(WAYS)} ways between {len(STATES)} states, 0 torn files"
    )


def run(steps: Steps, smallest: Release, root: Path, goal: Sets) -> object:
    try:
        with steps.counted():
            return go(smallest, root, goal)
    except (Refused, PutBack, NotPutBack, OSError) as error:
        return error


def test_a_kill_at_every_step_leaves_whole_files_and_the_next_run_finishes(
    smallest: Release, root: Path, note: Callable[[str], None]
) -> None:
    total, mixed = 0, 0
    for (start, goal), at in each_step(smallest, root):
        prepare(root, start)
        status = in_child(lambda: kill_at(at, smallest, root, goal))  # noqa: B023 - run at once

        assert os.WIFSIGNALED(status), (start, goal, at)
        require_whole(root)
        total += 1
        mixed += on_disk(root) not in (contents(start), contents(goal))
        require_next_run_finishes(smallest, root, goal)
    assert mixed >= len(WAYS), "the kills did not fall between the renames"
    note(
        f"fault injection, stacked sets: killed at each of {total} steps "
        f"of {len(WAYS)} ways, {mixed} of them half-way, 0 torn files"
    )


def kill_at(at: int, smallest: Release, root: Path, goal: Sets) -> None:
    steps = Steps(lambda: os.kill(os.getpid(), signal.SIGKILL), at)
    with steps.counted():
        go(smallest, root, goal)
