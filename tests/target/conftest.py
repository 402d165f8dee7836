# SPDX-License-Identifier: Apache-2.0
"""The real packages, pristine and patched, in folders of their own.

They come out of the sandbox's git checkouts as committed, so it does not matter whether
the working trees there are patched at the moment; the sandbox itself is never written to.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import pytest

from target import releases

PROJECT = Path(__file__).resolve().parent.parent.parent
SANDBOX = Path(os.environ.get("KIT_SANDBOX") or PROJECT / "build" / "sandbox").resolve()
CHECKOUTS = {"vllm": "vllm-workspace/vllm", "vllm_ascend": "vllm-workspace/vllm-ascend"}
NPU_BINARIES = "vllm_ascend/_cann_ops_custom"
TIMEOUT_S = 120

if find_spec("torch") is None:
    raise pytest.UsageError(
        f"{sys.executable} has no torch: type {SANDBOX}/venv/bin/pytest instead, which make sandbox builds"
    )


@pytest.fixture(scope="session")
def sandbox() -> Path:
    """The folder with the virtual environment and the checkouts. Without it, tests fail; they do not skip."""
    needed = [SANDBOX / "complete", *(SANDBOX / checkout / ".git" for checkout in CHECKOUTS.values())]
    absent = [str(path) for path in needed if not path.exists()]
    if absent:
        pytest.fail(
            f"no sandbox at {SANDBOX} ({absent[0]} is absent): type make sandbox, or set KIT_SANDBOX",
            pytrace=False,
        )
    return SANDBOX


@pytest.fixture(scope="session")
def sandbox_python(sandbox: Path) -> Path:
    """The interpreter that has torch and what else the packages need."""
    return sandbox / "venv" / "bin" / "python"


@pytest.fixture(scope="session")
def pristine_root(sandbox: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``vllm/`` and ``vllm_ascend/`` as published. Shared: do not change it."""
    if releases.CHOSEN:
        return releases.published(releases.CHOSEN)
    root = tmp_path_factory.mktemp("pristine")
    for package, checkout in CHECKOUTS.items():
        unpack_committed(sandbox / checkout, package, root)
    for library in (sandbox / CHECKOUTS["vllm"] / "vllm").glob("*.so"):
        share(library, root / "vllm" / library.name)
    return root


@pytest.fixture(scope="session")
def patched_root(pristine_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of `pristine_root` to which the command line has applied the set. Shared: do not change it."""
    root = copy_root(pristine_root, tmp_path_factory.mktemp("patched") / "root")
    apply(root)
    return root


def copy_root(root: Path, destination: Path) -> Path:
    """A copy of a root that may be changed at will; the big libraries are shared, the sources are not."""
    shutil.copytree(root, destination, copy_function=share_libraries)
    return destination


def unpack_committed(checkout: Path, package: str, root: Path) -> None:
    """The tracked files of one package at HEAD, without the NPU's compiled kernels."""
    sealed = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    wanted = ["--", package, f":(exclude){NPU_BINARIES}"]
    archive = subprocess.run(
        ["git", "-c", "core.autocrlf=false", "archive", "HEAD", *wanted],
        cwd=checkout,
        env=sealed,
        check=True,
        capture_output=True,
        timeout=TIMEOUT_S,
    )
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        tar.extractall(root, filter="data")


def share_libraries(source: str, destination: str) -> str:
    """``copy_function`` of `copy_root`."""
    if source.endswith(".so"):
        share(Path(source), Path(destination))
        return destination
    return str(shutil.copy2(source, destination))


def share(source: Path, destination: Path) -> None:
    """A hard link to a library that nothing here writes to (250 MB in all), or a copy across file systems."""
    try:
        os.link(source, destination)
    except OSError:
        shutil.copy2(source, destination)


@pytest.fixture(scope="session")
def window_root(patched_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of `patched_root` with the set ``window`` on top. Shared: do not change it."""
    return with_sets(patched_root, tmp_path_factory.mktemp("window") / "root", "window")


def with_sets(root: Path, destination: Path, *names: str) -> Path:
    """A copy of a root to which the command line has applied opt-in sets."""
    copy = copy_root(root, destination)
    apply(copy, *names)
    return copy


def apply(root: Path, *names: str) -> None:
    command = [sys.executable, str(PROJECT / "scripts" / "kit"), "apply", *names, "--root", str(root)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if run.returncode != 0:
        pytest.fail(
            f"kit apply --root left with exit code {run.returncode}:\n{run.stdout}{run.stderr}", pytrace=False
        )
