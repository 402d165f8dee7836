# SPDX-License-Identifier: Apache-2.0
"""Runs a foreign program that may hang, or print without end, and waits for neither."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

OUTPUT_LIMIT = 1 << 20
"""Bytes; what a program prints beyond them is not read."""

_CHUNK = 1 << 16
_REAP_S = 1.0


@dataclass(frozen=True)
class Output:
    """What a program printed, both streams as one text. ``complaint`` says why it is not all of it."""

    text: str
    exit_code: int | None
    complaint: str = ""

    @property
    def succeeded(self) -> bool:
        return self.exit_code == 0 and not self.complaint


def run(
    command: Sequence[str | Path], environment: Mapping[str, str], folder: Path, timeout_s: float
) -> Output:
    """Run ``command`` in ``folder``; never raises for what the program is or does.

    A program that is still there after ``timeout_s`` seconds is killed with its children. One
    that even then stays (a process inside a hung driver) is left behind, not waited for.
    """
    try:
        process = subprocess.Popen(
            [os.fspath(word) for word in command],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return Output("", None, f"cannot be started ({reason})")
    assert process.stdout is not None  # noqa: S101 - stdout=PIPE gives one
    with process.stdout as stream:
        text, complaint = _read(stream, time.monotonic() + timeout_s, timeout_s)
    return Output(text.decode("utf-8", "replace"), _end(process, bool(complaint)), complaint)


def _read(stream: IO[bytes], deadline: float, timeout_s: float) -> tuple[bytes, str]:
    text = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while len(text) <= OUTPUT_LIMIT:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return bytes(text), f"gave no answer in {timeout_s:.0f} s"
            chunk = os.read(stream.fileno(), _CHUNK)
            if not chunk:
                return bytes(text), ""
            text += chunk
    return bytes(text[:OUTPUT_LIMIT]), f"printed more than {OUTPUT_LIMIT} bytes"


def _end(process: subprocess.Popen[bytes], kill: bool) -> int | None:
    if kill:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    try:
        return process.wait(_REAP_S)
    except subprocess.TimeoutExpired:
        return None
