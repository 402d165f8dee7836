# SPDX-License-Identifier: Apache-2.0
"""One run at a time on one installation, without a lock file: the kernel drops the lock with the process."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import Refused

WAIT_S = 10.0
_POLL_S = 0.1


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the lock of an installation: an flock on the package folder, so no file is left."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise Refused(f"{folder} cannot be opened ({error.strerror})", "{again}    # as root") from error
    try:
        _wait(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _wait(descriptor: int, folder: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise Refused(
                    f"another run of the kit holds {folder}: {_holder(descriptor)}",
                    "{again}    # when that has ended",
                ) from None
            time.sleep(_POLL_S)


def _holder(descriptor: int) -> str:
    """The process that holds the flock, by the kernel's table of locks."""
    inode = str(os.fstat(descriptor).st_ino)
    try:
        rows = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        rows = []
    # "1: FLOCK  ADVISORY  WRITE 4711 08:01:393220 0 EOF"; a waiter's row has "->" in front.
    for row in rows:
        if len(row) > 5 and row[1] == "FLOCK" and row[5].rpartition(":")[2] == inode:
            return f"process {row[4]} ({_command_line(row[4])})"
    return "a process that this container does not see"


def _command_line(pid: str) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "unknown"
    return " ".join(word.decode("utf-8", "replace") for word in words).strip()
