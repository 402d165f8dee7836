# SPDX-License-Identifier: Apache-2.0
"""Asks an engine of vLLM in a process of its own, and waits for its end."""

from __future__ import annotations

import os
import subprocess
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
        run = subprocess.run(
            [str(python), "-P", "-m", "tiny.engine", str(asked), str(answers)],
            cwd=scratch,
            env=environment | changes,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
        )
    if run.returncode != 0:
        raise EngineFailed(log.read_text("utf-8", "replace")[-6000:])
    parameters = answers / "parameters.safetensors"
    return Answers(read_replies(answers), load_file(parameters) if parameters.exists() else {})
