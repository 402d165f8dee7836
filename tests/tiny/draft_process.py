# SPDX-License-Identifier: Apache-2.0
"""Runs `tiny.draft_engine` in a process of its own, and waits for its end."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from tiny.draft_engine import Session, Task, read_session, write_tasks
from tiny.engine_process import TIMEOUT_S, EngineFailed
from tiny.launch import TESTS

DRAFTING = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 3}}


def run_session(
    python: Path,
    environment: dict[str, str],
    model: Path,
    tasks: dict[str, Task],
    scratch: Path,
    **options: Any,
) -> Session:
    """In ``environment``, one of `tiny.launch`; raises `EngineFailed`.

    ``options`` are those of vLLM's ``LLM``; they come on top of `tiny.engine.ENGINE`.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    asked, answered, log = scratch / "asked.json", scratch / "answered.json", scratch / "log"
    write_tasks(asked, model, tasks, options)
    path = os.pathsep.join(place for place in (environment["PYTHONPATH"], str(TESTS)) if place)
    with log.open("wb") as output:
        run = subprocess.run(
            [str(python), "-P", "-m", "tiny.draft_engine", str(asked), str(answered)],
            cwd=scratch,
            env=environment | {"PYTHONPATH": path, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
        )
    if run.returncode != 0:
        raise EngineFailed(log.read_text("utf-8", "replace")[-6000:])
    return read_session(answered)
