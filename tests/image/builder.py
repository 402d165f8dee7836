# SPDX-License-Identifier: Apache-2.0
"""``docker/build.sh`` as the tests run it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from image.buildah import TIMEOUT_S, Buildah

KIT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Build:
    """One run. ``output`` is what it printed, in order."""

    image: str
    exit_code: int
    output: str


@dataclass(frozen=True)
class Builder:
    """``make image``, with buildah and the store of the tests."""

    buildah: Buildah

    def __call__(self, base: str, image: str = "localhost/patched:test") -> Build:
        run = subprocess.run(
            [KIT / "docker" / "build.sh"],
            env=self.buildah.environment | {"BUILDER": "buildah", "BASE_IMAGE": base, "IMAGE": image},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
        )
        return Build(image, run.returncode, run.stdout)
