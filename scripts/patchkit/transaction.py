# SPDX-License-Identifier: Apache-2.0
"""The one writer: brings all files to what is wished, each by one write, or leaves them as they are.

1. Stage: every new content, and a copy of every old one, is written beside its file,
   given mode and owner, synced, read back and hashed. A folder without permission and
   a full disk show here, before anything was replaced.
2. Commit: each file is checked once more, then replaced by rename (or removed), read
   back and hashed; byte code that no longer fits is removed. Signals wait meanwhile.
3. A failure in 2 puts the copies back.

A kill at any point leaves each file whole, old or new, and at most some temporary
files, which the next run removes. Nothing else is ever recorded.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from . import bytecode, lock, plan
from .errors import NotPutBack, PutBack, Refused
from .plan import Change, Wish
from .release import Release
from .state import Installation, SetState, inspect
from .target import Target

_DEFERRED = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
_MARK = ".step3p7-kit."
_TEMPORARY = re.compile(r"\..+\.step3p7-kit\.\d+\.(new|old)")


@dataclass(frozen=True)
class Outcome:
    """What a run did for a wish. ``changes`` is empty where all was so already."""

    before: Installation
    after: Installation
    wish: Wish
    changes: tuple[Change, ...]
    leftovers: tuple[Path, ...] = ()
    """Temporary files that could not be removed at the end; the next run tries again."""


def apply(release: Release, target: Target, names: Sequence[str] = ()) -> Outcome:
    """Install the base and the named opt-in sets, finish what is there in part, leave the rest.

    Raises:
        KitError: with what is on the disk now, and what to do.
    """
    return bring(release, target, lambda found: plan.to_apply(found, names))


def revert(release: Release, target: Target, names: Sequence[str] = ()) -> Outcome:
    """Undo the named opt-in sets, or all of them with the base, as far as they were applied.

    Raises:
        KitError: with what is on the disk now, and what to do.
    """
    return bring(release, target, lambda found: plan.to_revert(found, names))


def bring(release: Release, target: Target, wish_for: Callable[[Installation], Wish]) -> Outcome:
    """Whatever is there to whatever is wished, in one transaction.

    Raises:
        KitError: with what is on the disk now, and what to do.
    """
    before = inspect(release, target)
    if before.state is SetState.NATIVE:
        return Outcome(before, before, wish_for(before), ())
    with ExitStack() as locks:
        for folder in target.lock_folders:
            locks.enter_context(lock.held(folder))
        _remove_temporaries({status.path.parent for status in before.chains if status.trouble is None})
        before = inspect(release, target)
        wish = wish_for(before)
        changes = plan.changes(before, wish)
        if changes:
            return _commit(before, wish, changes)
        found = (goal.on_disk for goal in plan.goals(before, wish))
        _remove_bytecode(path for status in found for path in bytecode.stale_of(status, target))
    return Outcome(before, before, wish, ())


# --- stage, commit, put back --------------------------------------------------------


@dataclass(frozen=True)
class _Staged:
    """A change with its new content, and a copy of its old one, beside the file."""

    change: Change
    new: Path | None
    old: Path | None

    @property
    def temporaries(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.new, self.old) if path is not None)


class _Disturbed(Exception):
    """The disk does not hold what was just written, or what was there a moment ago."""


def _commit(before: Installation, wish: Wish, changes: Sequence[Change]) -> Outcome:
    """Make all the changes or none.

    Raises:
        KitError: Refused, PutBack or NotPutBack, by how far it came.
    """
    written: list[Path] = []
    try:
        staged = _stage_all(changes, written)
        with _signals_deferred():
            try:
                after = _replace_all(before, wish, staged)
            finally:
                leftovers = _unlink_all(written)
    finally:
        _unlink_all(written)
    return Outcome(before, after, wish, tuple(changes), leftovers)


def _replace_all(before: Installation, wish: Wish, staged: Sequence[_Staged]) -> Installation:
    """The renames, a look at what they gave, and the way back where it is not what it should be."""
    done: list[_Staged] = []
    changes = [item.change for item in staged]
    try:
        for item in staged:
            _require_content(item.change.path, item.change.before)
            done.append(item)
            _replace(item.change.path, item.new)
        _sync_folders(changes)
        after = inspect(before.release, before.target)
        if not all(goal.reached for goal in plan.goals(after, wish)):
            raise _Disturbed(
                "the files read back are not the ones just written; does something else write there?"
            )
        _remove_bytecode(path for c in changes for path in bytecode.of_source(c.path, before.target))
    except (OSError, Refused, _Disturbed) as error:
        _put_back(done, error)
    return after


def _stage_all(changes: Sequence[Change], written: list[Path]) -> tuple[_Staged, ...]:
    """Write the new contents and the copies; ``written`` grows with each, so that it can be removed."""
    try:
        return tuple(_stage(change, written) for change in changes)
    except OSError as error:
        raise Refused(*_why_not_staged(error, written[-1].parent)) from error


def _stage(change: Change, written: list[Path]) -> _Staged:
    def write(text: bytes | None, suffix: str) -> Path | None:
        if text is None:
            return None
        path = change.path.with_name(f".{change.path.name}{_MARK}{os.getpid()}.{suffix}")
        written.append(path)
        _write_beside(path, text, change.path)
        return path

    return _Staged(change, new=write(change.after, "new"), old=write(change.before, "old"))


def _write_beside(path: Path, text: bytes, original: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(text)
        while view:
            view = view[os.write(descriptor, view) :]
        _keep_attributes(descriptor, original)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if path.read_bytes() != text:
        raise OSError(errno.EIO, "read back other bytes than were written")


def _keep_attributes(descriptor: int, original: Path) -> None:
    """Mode and owner of the file; for a new one, those its folder suggests."""
    try:
        found = original.stat()
        mode = stat.S_IMODE(found.st_mode)
    except FileNotFoundError:
        found = original.parent.stat()
        mode = stat.S_IMODE(found.st_mode) & 0o666
    mine = os.fstat(descriptor)
    if (found.st_uid, found.st_gid) != (mine.st_uid, mine.st_gid):
        os.fchown(descriptor, found.st_uid, found.st_gid)
    os.fchmod(descriptor, mode)


def _why_not_staged(error: OSError, folder: Path) -> tuple[str, str]:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return (
            f"there is no room left in {folder} ({error.strerror})",
            f"df -h {shlex.quote(str(folder))}    # free some room",
        )
    if error.errno == errno.EROFS:
        return f"{folder} is on a read-only file system", "start the container without --read-only"
    if error.errno in {errno.EACCES, errno.EPERM}:
        return (
            f"{folder} cannot be written to as user {os.geteuid()} ({error.strerror})",
            "{again}    # as root",
        )
    return f"writing in {folder} failed ({error.strerror})", "dmesg | tail"


def _replace(path: Path, new: Path | None) -> None:
    if new is None:
        os.unlink(path)
    else:
        os.replace(new, path)


def _require_content(path: Path, expected: bytes | None) -> None:
    try:
        found: bytes | None = path.read_bytes()
    except FileNotFoundError:
        found = None
    if found != expected:
        raise _Disturbed(f"{path} does not hold what it should; does something else write there?")


def _put_back(done: Sequence[_Staged], cause: Exception) -> NoReturn:
    """Undo the replaced files, last first.

    Raises:
        PutBack: always, where that worked. NotPutBack: where it did not.
    """
    failed: list[str] = []
    for item in reversed(done):
        try:
            if _content_or_none(item.change.path) == item.change.after:
                _replace(item.change.path, item.old)
            # Whatever else is there now is somebody's newer text, and not ours to undo.
            _require_content(item.change.path, item.change.before)
        except (OSError, _Disturbed):
            failed.append(str(item.change.path))
    reason = _reason(cause)
    if failed:
        raise NotPutBack(reason, "{kit} status    # when the cause is gone", tuple(failed)) from cause
    raise PutBack(reason, "{again}    # when the cause is gone") from cause


def _content_or_none(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _reason(cause: Exception) -> str:
    if isinstance(cause, OSError):
        where = cause.filename2 or cause.filename
        return f"replacing the files failed ({cause.strerror}{f': {where}' if where else ''})"
    return str(cause)


def _sync_folders(changes: Sequence[Change]) -> None:
    for folder in sorted({change.path.parent for change in changes}):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Let a Ctrl-C or a SIGTERM wait, then pass: the run is a moment from its end, and reports it."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, _DEFERRED)
    try:
        yield
    finally:
        while signal.sigtimedwait(_DEFERRED, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


# --- what must not stay ----------------------------------------------------------------


def _unlink_all(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Remove files that may be gone already; those that would not go."""
    left = []
    for path in paths:
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue
        except OSError:
            left.append(path)
    return tuple(left)


def _remove_temporaries(folders: Iterable[Path]) -> None:
    """What a killed run left. Safe under the lock: no other run is writing."""
    for folder in folders:
        _unlink_all(folder / name for name in os.listdir(folder) if _TEMPORARY.fullmatch(name))


def _remove_bytecode(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(FileNotFoundError):  # Python itself may replace or remove it meanwhile
            os.unlink(path)
