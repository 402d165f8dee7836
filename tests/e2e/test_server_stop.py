# SPDX-License-Identifier: Apache-2.0
"""No server outlives its test: what `e2e.server.stop` leaves behind, which is nothing."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from e2e import server
from e2e.server import session, stop

POLITE = "sleep 60 & echo ready; wait"
STUBBORN = "trap '' TERM; (trap '' TERM; echo ready; sleep 60) & while :; do sleep 1; done"
ORPHANING = "(trap '' TERM; echo ready; sleep 60) & exit 0"


@pytest.mark.parametrize("script", [POLITE, STUBBORN, ORPHANING], ids=["polite", "stubborn", "orphaning"])
def test_nothing_that_a_server_started_is_left(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STOP_S", 2)
    process = subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout
    process.stdout.readline()
    assert session(process.pid)

    stop(process)

    assert session(process.pid) == []


def test_an_interruption_while_stopping_leaves_nothing_either(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen(["bash", "-c", STUBBORN], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout
    process.stdout.readline()

    def interrupt_once(_seconds: float) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt_once)
    with pytest.raises(KeyboardInterrupt):
        stop(process)

    assert session(process.pid) == []


def test_the_end_of_a_log_is_short_whatever_is_in_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("x" * 10000 + "\n" + "line\n" * 1000)

    found = server.end_of(log)

    assert len(found.splitlines()) == server.LOG_LINES
    assert found.endswith("line")
