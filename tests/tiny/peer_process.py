# SPDX-License-Identifier: Apache-2.0
"""Asks `tiny.peer` in a process of its own, with the peer's packages in front of the sandbox's."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import torch
from safetensors.torch import load_file

from tiny.launch import KEPT, TESTS
from tiny.peer import Prompt, write_prompts

TIMEOUT_S = 300


class PeerFailed(Exception):
    """Its message is what the process said last."""


def ask_peer(
    python: Path, packages: Path, model: Path, prompts: dict[str, Prompt], scratch: Path
) -> dict[str, torch.Tensor]:
    """For each prompt ``[T, vocabulary]``, log-probabilities; raises `PeerFailed`."""
    asked, answers = scratch / "prompts.json", scratch / "answers.safetensors"
    write_prompts(asked, model, prompts)
    run(
        [str(python), "-P", "-m", "tiny.peer", str(asked), str(answers)],
        TIMEOUT_S,
        CUDA_VISIBLE_DEVICES="",
        HF_HOME=str(scratch / "hf"),
        HF_HUB_OFFLINE="1",
        PYTHONPATH=os.pathsep.join([str(packages), str(TESTS)]),
    )
    found: dict[str, torch.Tensor] = load_file(answers)
    return found


def run(command: list[str], timeout_s: int, **settings: str) -> None:
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    done = subprocess.run(command, env=kept | settings, capture_output=True, text=True, timeout=timeout_s)
    if done.returncode != 0:
        raise PeerFailed((done.stdout + done.stderr)[-4000:])
