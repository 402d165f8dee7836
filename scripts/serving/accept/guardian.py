# SPDX-License-Identifier: Apache-2.0
"""Holds a server, and ends it with all that it started: when it is asked to, and when the kit has died.

A program of its own: ``python -I -S -c SOURCE SECONDS COMMAND...``. It starts the command in a session of
that command's own and prints its process id. The end of its standard input is the wish to end: the
kit closes it, and so does the kernel where the kit was killed. Whatever is left of the session
after that many seconds is killed. Its exit code is the command's (128 + N for signal N).
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

_POLL_S = 0.1
_KILL_S = 30.0


def members(session: int) -> list[int]:
    """The processes of a session that run; one that has ended and waits for its parent does not."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            _, _, rest = Path("/proc", name, "stat").read_text("utf-8", "replace").rpartition(")")
            state, _, _, of_session = rest.split()[:4]
        except (OSError, ValueError):
            continue  # it ended while we looked
        if int(of_session) == session and state not in "ZX":
            found.append(int(name))
    return found


def end(session: int, grace_s: float, kill_s: float = _KILL_S) -> list[int]:
    """End a session: its leader by the polite signal, after ``grace_s`` all by the other one.

    Returns:
        What is left of it: nothing, but for processes that the kernel itself holds.
    """
    _signal(session, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while members(session) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    deadline = time.monotonic() + kill_s
    while (left := members(session)) and time.monotonic() < deadline:
        for pid in left:
            _signal(pid, signal.SIGKILL)
        time.sleep(_POLL_S)
    return left


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it went by itself


def main(arguments: list[str]) -> int:
    grace_s, command = float(arguments[0]), arguments[1:]
    asked: list[int] = []

    def ask(number: int, _frame: FrameType | None) -> None:
        asked.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, ask)
    try:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True)
    except OSError as error:
        print(f"{command[0]} cannot be started ({error.strerror})", file=sys.stderr)
        return 127
    print(server.pid, flush=True)
    while server.poll() is None and not asked and not select.select([0], [], [], _POLL_S)[0]:
        pass
    code = server.poll()
    end(server.pid, grace_s if code is None else 0.0)
    code = server.wait(_KILL_S) if code is None else code
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
