# SPDX-License-Identifier: Apache-2.0
"""Packages that are not the target's, each set of them in a folder of its own below ``build/``.

The sandbox stays as it is: such a folder lies in front of it on the path of one process.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tiny.launch import TESTS

PROJECT = TESTS.parent
CACHE = PROJECT / ".cache" / "pip"
TIMEOUT_S = 900

PEER = "peer"
"""transformers with its own ``step3p7``: 14 MB to download, 139 MB on disk."""

NATIVE = "native"
"""A vLLM that has the model by itself: 105 MB to download, 367 MB on disk."""


def installed(name: str, python: Path) -> Path:
    """The folder with what ``requirements/NAME.txt`` pins, as pip installs it for this interpreter.

    It is kept, and installed anew when the pins are others.
    """
    pins, folder = TESTS / "requirements" / f"{name}.txt", PROJECT / "build" / name
    stamp = folder / "complete"
    if stamp.is_file() and stamp.read_text("utf-8") == pins.read_text("utf-8"):
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", "--cache-dir", str(CACHE)]
    wanted = ["--no-deps", "--require-hashes", "--target", str(folder), "-r", str(pins)]
    subprocess.run([*pip, "install", *wanted], check=True, timeout=TIMEOUT_S)
    stamp.write_text(pins.read_text("utf-8"), "utf-8")
    return folder
