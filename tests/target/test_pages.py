# SPDX-License-Identifier: Apache-2.0
"""What README and docs/ mark ``container``, typed in the container's layout, on the real packages."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import pages
import tree
from target.test_kit import SEALED, Installation, editable  # noqa: F401 - a fixture

BLOCKS = [
    pytest.param(block, id=block.where)
    for page in pages.english()
    for block in page.blocks
    if "container" in block.marks
]


@pytest.fixture
def container(editable: Installation, tmp_path: Path) -> dict[str, str]:  # noqa: F811
    """The environment of a shell in it: ``vllm`` on PATH is of the interpreter that has the packages."""
    folder = editable.python.parent
    (folder / "vllm").write_text(f"#!{editable.python}\n")
    (folder / "vllm").chmod(0o755)
    (folder / "kit").symlink_to(tree.PROJECT / "scripts" / "kit")
    return SEALED | {"PATH": f"{folder}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}


@pytest.mark.parametrize("block", BLOCKS)
def test_what_a_page_says_of_the_container_is_so(
    block: pages.Block, container: dict[str, str], tmp_path: Path
) -> None:
    places = {"/tmp/": f"{tmp_path}/", "/vllm-workspace": f"{tmp_path}/vllm-workspace", "make ": "make -s "}
    for step in block.steps():
        command = step.command
        for place, real in places.items():
            command = command.replace(place, real)
        run = subprocess.run(
            ["bash", "-c", command],
            cwd=tree.PROJECT,
            env=container,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        printed = run.stdout.replace(f"{tmp_path}/vllm-workspace", "/vllm-workspace")
        printed = printed.replace(f"{tmp_path}/venv/bin/kit", "kit").replace(f"{tmp_path}/", "/tmp/")
        assert step.output is None or pages.says(printed, step.output), printed
