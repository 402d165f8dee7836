# SPDX-License-Identifier: Apache-2.0
"""The stand-in base images, and the patched images built on them by ``docker/build.sh``."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from image import standin
from image.buildah import Buildah, Container, storage_driver
from image.builder import KIT, Build, Builder

CACHE = Path(os.environ.get("KIT_CACHE", KIT / ".cache"))
NEEDED = ("buildah", "debootstrap")


@pytest.fixture(scope="session")
def buildah() -> Iterator[Buildah]:
    """A store with both stand-ins in it; whatever else a run left there is removed."""
    missing = [command for command in NEEDED if shutil.which(command) is None]
    if missing or os.geteuid() != 0:
        pytest.exit(
            f"the image tests need root and {' and '.join(NEEDED)}; nothing was installed. "
            f"As root, type: apt-get install -y --no-install-recommends {' '.join(NEEDED)}",
            returncode=3,
        )
    folder = CACHE / "image" / standin.fingerprint()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        driver = storage_driver(folder)
        found = Buildah(folder / driver, driver)
        bases = (standin.EDITABLE, standin.WHEEL)
        found.clear(keep=bases)
        standin.make(found, CACHE, folder / "scratch")
        yield found
        found.clear(keep=bases)


@pytest.fixture(scope="session")
def build(buildah: Buildah) -> Builder:
    return Builder(buildah)


@pytest.fixture(scope="session")
def patched(build: Builder) -> Build:
    """The patched image on the official layout."""
    done = build(standin.EDITABLE, "localhost/patched:editable")
    assert done.exit_code == 0, done.output
    return done


@pytest.fixture
def container(buildah: Buildah, patched: Build) -> Iterator[Container]:
    """A fresh container of the patched image."""
    with buildah.container(patched.image) as fresh:
        yield fresh
