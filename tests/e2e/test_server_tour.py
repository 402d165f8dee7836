# SPDX-License-Identifier: Apache-2.0
"""``make demo`` where it does not go well: it names the step, and leaves nothing running."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.server import session
from tiny.launch import TESTS

LIMIT_S = 120
LEFT_FAILED, LEFT_INTERRUPTED = 1, 130

Start = Callable[[Path], "subprocess.Popen[str]"]


@pytest.fixture
def start(sandbox_python: Path, tmp_path: Path) -> Start:
    def tour(root: Path) -> subprocess.Popen[str]:
        command = [str(sandbox_python), "-m", "e2e.tour", str(tmp_path), str(root)]
        settings = os.environ | {"PYTHONPATH": str(TESTS)}
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=settings, stdout=pipe, stderr=pipe, text=True)

    return tour


def test_without_the_set_it_names_the_step_and_shows_the_end_of_the_log(
    start: Start, pristine_root: Path, tmp_path: Path
) -> None:
    run = start(pristine_root)

    _, said = run.communicate(timeout=LIMIT_S)

    assert run.returncode == LEFT_FAILED
    assert "FAILED at step 2 of 7, vllm serve: vllm serve left with exit code 1" in said
    assert "are not supported for now" in said
    assert f"explain --log {tmp_path / 'server' / 'server.log'}" in said
    assert processes_that_name(tmp_path) == []


@pytest.mark.parametrize(
    ("interruption", "processes"),
    [(signal.SIGINT, 1), (signal.SIGINT, 3), (signal.SIGTERM, 1), (signal.SIGHUP, 1)],
    ids=["Ctrl-C", "Ctrl-C when the engine is there", "terminated", "terminal closed"],
)
def test_an_interruption_stops_the_server_and_all_that_it_started(
    start: Start, patched_root: Path, tmp_path: Path, interruption: signal.Signals, processes: int
) -> None:
    run = start(patched_root)
    server = wait_for_server(run, tmp_path, processes)

    run.send_signal(interruption)
    _, said = run.communicate(timeout=LIMIT_S)

    assert run.returncode == LEFT_INTERRUPTED
    assert "interrupted; the server is stopped" in said
    assert session(server) == []


def wait_for_server(run: subprocess.Popen[str], folder: Path, processes: int) -> int:
    """Its process id, as soon as it has so many processes."""
    limit = time.monotonic() + LIMIT_S
    while True:
        for server in processes_that_name(folder):
            if server != run.pid and len(session(server)) >= processes:
                return server
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < limit
        time.sleep(0.2)


def processes_that_name(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        except OSError:
            continue  # not a process, or one that has ended
        if any(word.startswith(str(folder)) for word in words):
            found.append(int(entry.name))
    return found
