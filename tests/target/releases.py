# SPDX-License-Identifier: Apache-2.0
"""The releases beside the sandbox's own: their published packages, and interpreters that have them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent.parent
PINNED = PROJECT / "tests" / "requirements" / "releases"
PACKAGES = Path(os.environ.get("KIT_PACKAGES") or PROJECT / "build" / "packages")
CHOSEN = os.environ.get("KIT_RELEASE")
"""The release that tests/target is to run on, instead of the sandbox's; its vLLM lies on PYTHONPATH."""

NAMES = sorted(file.stem for file in PINNED.glob("*.txt"))


def published(name: str) -> Path:
    """As unpacked; shared, so do not change it. Without it, tests fail; they do not skip."""
    root = PACKAGES / name
    if not (root / "complete").exists():
        pytest.fail(f"no packages at {root}: type make packages, or set KIT_PACKAGES", pytrace=False)
    return root


def interpreter_with(root: Path, sandbox_python: Path, folder: Path) -> Path:
    """A Python that imports the packages of ``root``, and what else they need from the sandbox."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site_packages = next((folder / "lib").glob("python3.*")) / "site-packages"
    needed = next((sandbox_python.parent.parent / "lib").glob("python3.*")) / "site-packages"
    (site_packages / "of_this_test.pth").write_text(f"{root}\n{needed}\n", "utf-8")
    return folder / "bin" / "python"
