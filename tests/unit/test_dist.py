# SPDX-License-Identifier: Apache-2.0
"""kit.pyz: the kit as one file, for a container without a network, without git, on a read-only folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tree


def build(project: Path, output: Path) -> Path:
    subprocess.run(
        [sys.executable, project / "scripts" / "build_pyz.py", output], check=True, capture_output=True
    )
    return output


@pytest.fixture(scope="module")
def pyz(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of the small set, alone in a folder that nobody may write to."""
    project = tmp_path_factory.mktemp("project") / "project"
    shutil.copytree(bundle, project)
    for name in ("LICENSE", "NOTICE"):
        shutil.copy(tree.PROJECT / name, project)
    folder = tmp_path_factory.mktemp("offline")
    archive = build(project, folder / "kit.pyz")
    shutil.rmtree(project)
    folder.chmod(0o555)
    return archive


def run(pyz: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """With an empty PATH; and, where namespaces can be had, no network and a read-only folder."""
    command = [sys.executable, str(pyz), *map(str, arguments)]
    if can_unshare():
        mount = shutil.which("mount")
        seal = f'{mount} --bind "$0" "$0" && {mount} -o remount,ro,bind "$0" && exec "$@"'
        command = [
            shutil.which("unshare") or "",
            "-n",
            "-m",
            "/bin/sh",
            "-c",
            seal,
            str(pyz.parent),
            *command,
        ]
    return subprocess.run(command, env={"PATH": "/nowhere"}, capture_output=True, text=True)


def can_unshare() -> bool:
    probe = ["unshare", "-n", "-m", "true"]
    return os.geteuid() == 0 and subprocess.run(probe, capture_output=True).returncode == 0


def test_the_archive_does_what_the_checkout_does(pyz: Path, root: Path) -> None:
    pristine = tree.snapshot(root)
    for verb, sentence in (
        ("status", "pristine: none of the 5 files"),
        ("apply", "applied: 5 of 5 files written"),
        ("verify", "verified: 10 checks passed"),
        ("apply", "already applied"),
        ("revert", "reverted: 5 of 5"),
    ):
        done = run(pyz, verb, "--root", root)
        assert sentence in done.stdout, (verb, done.stdout, done.stderr)
    assert tree.snapshot(root) == pristine


def test_the_archive_has_every_set_of_the_kit(stacked_bundle: Path, tmp_path: Path) -> None:
    project = shutil.copytree(stacked_bundle, tmp_path / "project")
    for name in ("LICENSE", "NOTICE"):
        shutil.copy(tree.PROJECT / name, project)
    archive = build(project, tmp_path / "offline" / "kit.pyz")
    shutil.rmtree(project)
    root = tree.write_stacked(tmp_path / "site-packages", ())
    assert "What draft costs." in run(archive, "sets", "--root", root).stdout
    for arguments, there in (
        (["apply", tree.DRAFT], ("base", tree.DRAFT)),
        (["apply", "all"], ("base", tree.DRAFT, tree.LIMIT)),
        (["revert", tree.DRAFT], ("base", tree.LIMIT)),
    ):
        done = run(archive, *arguments, "--root", root)
        assert done.returncode == 0, done.stderr
        assert tree.rungs(root) == tree.rungs_of(there)


def test_the_archive_says_what_to_type_next(pyz: Path, root: Path) -> None:
    assert f"Next: python3 {pyz} apply --root {root}" in run(pyz, "status", "--root", root).stdout


def test_the_archive_finds_the_packages_of_an_interpreter(pyz: Path) -> None:
    done = run(pyz, "status", "--python", sys.executable)
    assert done.returncode == 3
    assert "cannot import a package vllm; nothing was changed" in done.stderr


def test_a_cut_archive_member_is_one_sentence(pyz: Path, root: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "kit.pyz"
    with zipfile.ZipFile(pyz) as source, zipfile.ZipFile(damaged, "w") as copy:
        for name in source.namelist():
            text = source.read(name)
            copy.writestr(name, text[:100] if name.endswith("manifest.toml") else text)
    done = run(damaged, "apply", "--root", root)
    assert done.returncode == 3
    assert "manifest.toml is not valid TOML" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_flipped_byte_in_the_archive_is_one_sentence(pyz: Path, root: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(pyz) as archive:
        entry = archive.getinfo("patches/v0.20.2rc1/manifest.toml")
    text = bytearray(pyz.read_bytes())
    text[entry.header_offset + 30 + len(entry.filename) + entry.compress_size // 2] ^= 0xFF
    damaged = tmp_path / "it's damaged.pyz"
    damaged.write_bytes(text)
    done = run(damaged, "apply", "--root", root)
    assert done.returncode == 3
    assert "manifest.toml is damaged in the archive" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    digests = {hashlib.sha256(build(tree.PROJECT, tmp_path / name).read_bytes()).hexdigest() for name in "ab"}
    assert len(digests) == 1


def test_the_real_archive_is_small_and_holds_no_byte_code(tmp_path: Path) -> None:
    archive = build(tree.PROJECT, tmp_path / "kit.pyz")
    with zipfile.ZipFile(archive) as found:
        names = found.namelist()
    assert archive.stat().st_size < 400_000
    assert {"__main__.py", "LICENSE", "NOTICE", "patches/v0.20.2rc1/manifest.toml"} <= set(names)
    assert [name for name in names if "__pycache__" in name] == []
