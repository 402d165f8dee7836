# SPDX-License-Identifier: Apache-2.0
"""A failure, and a kill, at every file-system step of apply and of revert.

The calls by which the engine touches the disk are counted in a run that succeeds, and
then made to fail, or to kill the process, one by one. After each: every file is whole,
the error tells the truth about the disk, and the next run finishes or undoes the job.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import tree
from patchkit import lock, target, transaction
from patchkit.errors import NotPutBack, PutBack, Refused
from patchkit.release import Release
from patchkit.transaction import Outcome
from unit.patchkit.faults import Steps, fail, in_child, sources, temporaries

Verb = Callable[[Release, target.Target], Outcome]
Note = Callable[[str], None]
VERBS = {"apply": transaction.apply, "revert": transaction.revert}


def prepare(root: Path, verb: str) -> dict[str, bytes]:
    """The installation before the run, with byte code that will be stale after it."""
    applied = tree.ORDER if verb == "revert" else ()
    tree.write_packages(root, applied)
    tree.write(root / "vllm/models/__pycache__/registry.cpython-311.pyc", b"stale byte code, of no source")
    return tree.snapshot(root)


def in_folder(small_set: Release, root: Path) -> target.Target:
    return target.in_folder(small_set.packages, root)


def count(small_set: Release, root: Path, verb: str) -> list[str]:
    prepare(root, verb)
    found = in_folder(small_set, root)
    steps = Steps()
    with steps.counted():
        VERBS[verb](small_set, found)
    return steps.names


def require_whole(root: Path) -> dict[str, str]:
    found = tree.states(root)
    assert "torn" not in found.values(), found
    return found


def require_next_runs_work(small_set: Release, root: Path) -> None:
    """The next apply finishes, the next revert undoes, and neither leaves anything behind."""
    found = in_folder(small_set, root)
    transaction.apply(small_set, found)
    assert set(tree.states(root).values()) == {"applied"}
    transaction.revert(small_set, found)
    assert set(tree.states(root).values()) == {"pristine"}
    assert temporaries(root) == []
    assert not (root / "vllm/models/__pycache__/registry.cpython-311.pyc").exists()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "WAIT_S", 0.0)


@pytest.mark.parametrize("verb", VERBS)
def test_steps_cover_every_kind_of_call(small_set: Release, tmp_path: Path, verb: str, note: Note) -> None:
    names = count(small_set, tmp_path / "root", verb)

    assert {"os.open", "os.write", "os.fsync", "os.fchmod", "os.replace", "os.unlink", "fcntl.flock"} <= set(
        names
    )
    assert len(names) > 100
    note(f"fault injection, {verb}: {len(names)} file-system steps")


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("verb", VERBS)
def test_one_failure_at_every_step_leaves_all_or_nothing(
    small_set: Release, tmp_path: Path, verb: str, number: int, note: Note
) -> None:
    total = len(count(small_set, tmp_path / "count", verb))
    seen = set()
    for at in range(1, total + 1):
        root = tmp_path / f"at-{at}"
        before = prepare(root, verb)
        found = in_folder(small_set, root)
        steps = Steps(fail(number), at)
        outcome = run(steps, small_set, found, verb)
        seen.add(type(outcome))

        require_whole(root)
        if isinstance(outcome, Refused | PutBack | OSError):
            assert sources(tree.snapshot(root)) == sources(before), (at, steps.names[-1], outcome)
        elif isinstance(outcome, Outcome):
            goal = "applied" if verb == "apply" else "pristine"
            assert set(tree.states(root).values()) == {goal}, (at, outcome)
        assert not isinstance(outcome, NotPutBack), (at, steps.names)
        if temporaries(root):
            assert steps.names[at - 1] == "os.unlink", (at, temporaries(root))
        require_next_runs_work(small_set, root)
    assert {Refused, PutBack, Outcome} <= seen
    note(f"fault injection, {verb}: {errno.errorcode[number]} at each of {total} steps, 0 torn files")


def run(steps: Steps, small_set: Release, found: target.Target, verb: str) -> object:
    """What the run ended in: its outcome, or the error that the rim would print."""
    try:
        with steps.counted():
            return VERBS[verb](small_set, found)
    except (Refused, PutBack, NotPutBack, OSError) as error:
        return error


@pytest.mark.parametrize("verb", VERBS)
def test_a_disk_that_fails_from_some_step_on_tears_no_file_and_no_truth(
    small_set: Release, tmp_path: Path, verb: str
) -> None:
    total = len(count(small_set, tmp_path / "count", verb))
    seen = set()
    for at in range(1, total + 1):
        root = tmp_path / f"at-{at}"
        before = prepare(root, verb)
        found = in_folder(small_set, root)
        outcome = run(Steps(fail(errno.EIO), at, onwards=True), small_set, found, verb)
        seen.add(type(outcome))

        states = require_whole(root)
        if isinstance(outcome, NotPutBack):
            assert outcome.left_changed
            goal = "applied" if verb == "apply" else "pristine"
            changed = {str(root / path) for path, state in states.items() if state == goal}
            assert changed <= set(outcome.left_changed), (at, states, outcome)
        elif not isinstance(outcome, Outcome):
            assert sources(tree.snapshot(root)) == sources(before), (at, outcome)
        require_next_runs_work(small_set, root)
    assert NotPutBack in seen


@pytest.mark.parametrize("verb", VERBS)
def test_a_kill_at_every_step_leaves_whole_files_and_the_next_run_finishes(
    small_set: Release, tmp_path: Path, verb: str, note: Note
) -> None:
    total = len(count(small_set, tmp_path / "count", verb))
    mixed = 0
    for at in range(1, total + 1):
        root = tmp_path / f"at-{at}"
        prepare(root, verb)
        found = in_folder(small_set, root)

        status = in_child(lambda: kill_at(at, small_set, found, verb))  # noqa: B023 - run at once

        assert os.WIFSIGNALED(status), at
        assert os.WTERMSIG(status) == signal.SIGKILL
        mixed += len(set(require_whole(root).values())) > 1
        require_next_runs_work(small_set, root)
    assert mixed >= len(tree.ORDER) - 1, "the kills did not fall between the renames"
    note(f"fault injection, {verb}: killed at each of {total} steps, {mixed} of them half-way, 0 torn files")


def kill_at(at: int, small_set: Release, found: target.Target, verb: str) -> None:
    steps = Steps(lambda: os.kill(os.getpid(), signal.SIGKILL), at)
    with steps.counted():
        VERBS[verb](small_set, found)


@pytest.mark.parametrize("verb", VERBS)
def test_a_kill_leaves_no_lock(small_set: Release, root: Path, verb: str) -> None:
    prepare(root, verb)
    found = in_folder(small_set, root)
    in_child(lambda: kill_at(60, small_set, found, verb))

    VERBS[verb](small_set, found)  # lock.WAIT_S is 0 here: a lock left behind would refuse
