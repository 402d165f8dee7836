# SPDX-License-Identifier: Apache-2.0
"""A program that the user waits for. However its caller leaves, it and its children are gone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

_GRACE_S = 5.0


@contextlib.contextmanager
def running(
    command: Sequence[str | Path],
    environment: Mapping[str, str],
    folder: Path,
    stdout: IO[bytes] | int,
    stderr: IO[bytes] | int | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start ``command``; stop what is left of it at the end of the block.

    It gets a session of its own, so that Ctrl-C reaches the caller alone and nothing ends twice.

    Raises:
        OSError: it cannot be started.
    """
    process = subprocess.Popen(
        [os.fspath(word) for word in command],
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """A signal that can be heeded first, then one that cannot be ignored."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with contextlib.suppress(OSError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
