# SPDX-License-Identifier: Apache-2.0
"""The means to bring a copy of the real packages into the states that users have them in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from target.conftest import PROJECT, TIMEOUT_S

MODEL = Path("vllm/model_executor/models/step3p7.py")
MODELS = Path("vllm/model_executor/models/registry.py")
TOKENIZERS = Path("vllm/tokenizers/registry.py")

ENTRY = ('TOKENIZER_CLASS: set[str] = {"step3_vl"}', 'TOKENIZER_CLASS: set[str] = {"step3_vl", "step3p7"}')
"""The tokenizer's edit without its other half, the wrapper."""


def kit(verb: str, root: Path, *sets: str) -> None:
    command = [sys.executable, str(PROJECT / "scripts" / "kit"), verb, *sets, "--root", str(root)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert run.returncode == 0, run.stdout + run.stderr


def edit(file: Path, old: str, new: str) -> None:
    """``old`` becomes ``new``; it must occur exactly once."""
    source = file.read_text("utf-8")
    assert source.count(old) == 1, f"{file}: {old!r} occurs {source.count(old)} times"
    replace(file, source.replace(old, new))


def replace(file: Path, content: str) -> None:
    """By a file of its own, for the old one may be shared with another copy."""
    file.unlink(missing_ok=True)
    file.write_text(content, "utf-8")
