# SPDX-License-Identifier: Apache-2.0
"""docs/new-release.md, followed to the letter, gives the set that the kit has."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pages
from target import releases

PAGE = pages.DOCS / "new-release.md"
MARK = "run-by=tests/target/test_new_release.py"
RELEASE = "v0.22.1rc1"


def commands() -> list[str]:
    page = pages.Page(PAGE, PAGE.read_text("utf-8"))
    return [step.command for block in page.blocks if MARK in block.marks for step in block.steps()]


def a_checkout(folder: Path) -> Path:
    """The project as a maintainer sees it, but for what the page writes: that goes to ``folder``."""
    for name in ("scripts", "patches", "overlay"):
        (folder / name).symlink_to(releases.PROJECT / name)
    packages = folder / "build" / "packages"
    packages.mkdir(parents=True)
    (packages / RELEASE).symlink_to(releases.published(RELEASE))
    return folder


def files(folder: Path) -> dict[str, bytes]:
    """The base set alone: opt-in sets have folders of their own."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def test_the_guide_to_the_letter_gives_the_set_that_is_there(tmp_path: Path) -> None:
    script = "\n".join(f"{command}\necho left with $?" for command in commands())

    run = subprocess.run(
        ["bash", "-c", script], cwd=a_checkout(tmp_path), capture_output=True, text=True, timeout=120
    )

    codes = [line for line in run.stdout.splitlines() if line.startswith("left with ")]
    undecided = ["left with 1", "left with 1"]  # the draft as it is asked the first and the second time
    assert [code for code in codes if code != "left with 0"] == undecided, run.stdout + run.stderr
    assert files(tmp_path / "build/draft/set") == files(releases.PROJECT / "patches" / RELEASE)


def test_a_hunk_that_lands_nowhere_is_never_fitted(tmp_path: Path) -> None:
    """With moved hunks accepted, and no file patched by hand, nothing is written."""
    draft = ["python3", "scripts/draft_release.py", "v0.20.2rc1", RELEASE, f"build/packages/{RELEASE}", "set"]

    run = subprocess.run(
        [*draft, "--accept-moved"], cwd=a_checkout(tmp_path), capture_output=True, text=True, timeout=120
    )

    assert run.returncode == 1
    assert "hunk 1 does not land: its 7 lines from line 25 stand nowhere word for word" in run.stdout
    assert "2 to decide: vllm_ascend/ops/activation.py, vllm_ascend/ops/fused_moe/moe_mlp.py" in run.stderr
    assert not (tmp_path / "set").exists()
