# SPDX-License-Identifier: Apache-2.0
"""Asks an engine of vLLM in a process of its own, and waits for its end."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tiny.engine import Question, Reply, read_replies, write_questions
from tiny.launch import TESTS

TIMEOUT_S = 300


@dataclass(frozen=True)
class Answers:
    """What an engine said, and the parameters that it had loaded, as `tiny.engine` tells them."""

    replies: dict[str, Reply]
    parameters: dict[str, torch.Tensor]


class EngineFailed(Exception):
    """Its message is the end of the log."""


def ask_engine(
    python: Path,
    environment: dict[str, str],
    model: Path,
    questions: dict[str, Question],
    scratch: Path,
    timeout_s: int = TIMEOUT_S,
    **options: Any,
) -> Answers:
    """Start `tiny.engine` in ``environment``, one of `tiny.launch`; raises `EngineFailed`.

    ``options`` are those of vLLM's ``LLM``; they come on top of `tiny.engine.ENGINE`.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    asked, answers, log = scratch / "questions.json", scratch / "answers", scratch / "log"
    write_questions(asked, model, questions, options)
    path = [place for place in (environment["PYTHONPATH"], str(TESTS)) if place]
    changes = {"PYTHONPATH": os.pathsep.join(path), "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    with log.open("wb") as output:
        code = run_in_a_group(
            [str(python), "-P", "-m", "tiny.engine", str(asked), str(answers)],
            timeout_s,
            cwd=scratch,
            env=environment | changes,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    if code != 0:
        raise EngineFailed(log.read_text("utf-8", "replace")[-6000:])
    parameters = answers / "parameters.safetensors"
    return Answers(read_replies(answers), load_file(parameters) if parameters.exists() else {})


def run_in_a_group(command: list[str], timeout_s: int, **settings: Any) -> int:
    """The exit code. Whatever the command started, a rank that hangs among it, is gone afterwards."""
    with subprocess.Popen(command, start_new_session=True, **settings) as process:
        try:
            return process.wait(timeout_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
