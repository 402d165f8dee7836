# SPDX-License-Identifier: Apache-2.0
"""The log of a healthy server, from its first line to the shutdown: ``kit explain`` finds no fault."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from e2e.cases import PICTURE, Serve
from e2e.chat import say
from target.conftest import PROJECT, TIMEOUT_S
from tiny.conversations import CHINESE, ask

pytest_plugins = ["e2e.server_fixtures"]


def explain(log: Path) -> dict[str, Any]:
    command = [sys.executable, str(PROJECT / "scripts" / "kit"), "explain", "--json", "--log", str(log)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def test_nothing_is_found_in_the_log_of_a_healthy_server(
    serve: Serve, patched_root: Path, flat_model: Path
) -> None:
    with serve(patched_root, flat_model) as server:
        say(server, ask(CHINESE))
        say(server, ask("这张图片里有什么？", PICTURE))
    log = server.log.read_text("utf-8", "replace")

    found = [row for row in explain(server.log)["explanations"] if row["severity"] != "harmless"]

    assert "Application startup complete" in log
    assert "Application shutdown complete" in log
    assert [row["name"] for row in found if row["name"] != "nothing-found"] == []

    with server.log.open("a") as more:
        more.write("(Worker_TP3 pid=1) ERROR 12-01 01:08:07 RuntimeError: NPU out of memory.\n")
    assert explain(server.log)["explanations"][0]["name"] == "out-of-memory"
