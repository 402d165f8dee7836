# SPDX-License-Identifier: Apache-2.0
"""Installs the peer's packages in a folder of their own, and asks `tiny.peer` in a process of its own.

The sandbox's own transformers is the target's and stays as it is: the peer's packages lie in
front of it on the path of that one process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import torch
from safetensors.torch import load_file

from tiny.launch import KEPT, TESTS
from tiny.peer import Prompt, write_prompts

REQUIREMENTS = TESTS / "requirements" / "peer.txt"
INSTALL_TIMEOUT_S = 600
TIMEOUT_S = 300


class PeerFailed(Exception):
    """Its message is what the process said last."""


def install_peer(python: Path, folder: Path, cache: Path) -> None:
    """Does nothing if what `REQUIREMENTS` pins is there already (45 MB to download, 280 MB on disk)."""
    stamp = folder / "complete"
    if stamp.is_file() and stamp.read_text("utf-8") == REQUIREMENTS.read_text("utf-8"):
        return
    shutil.rmtree(folder, ignore_errors=True)
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", "--cache-dir", str(cache)]
    wanted = ["--no-deps", "--require-hashes", "--target", str(folder), "-r", str(REQUIREMENTS)]
    run([*pip, "install", *wanted], INSTALL_TIMEOUT_S)
    stamp.write_text(REQUIREMENTS.read_text("utf-8"), "utf-8")


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
