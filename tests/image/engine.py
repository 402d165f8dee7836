#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The part of ``docker run`` that docker/run.sh uses, done by buildah without a daemon.

Mounts are real. What a container engine does around a process (restart, log, health,
ports, limits) is accepted and left out; so are devices and the driver's files, which the
machine of the tests does not have. STORE and DRIVER name the tests' store.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from image.buildah import Buildah

VALUES = [
    *("--name", "--restart", "--stop-timeout", "--publish", "--shm-size", "--security-opt", "--device"),
    *("--health-cmd", "--health-interval", "--health-timeout", "--health-retries", "--health-start-period"),
    *("--log-driver", "--log-opt"),
]


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("verb", choices=["run"])
    for flag in ("--rm", "--detach", "--init"):
        parser.add_argument(flag, action="store_true")
    for value in VALUES:
        parser.add_argument(value, action="append")
    parser.add_argument("--mount", action="append", default=[])
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--env-file", action="append", default=[], type=Path)
    parser.add_argument("--entrypoint")
    parser.add_argument("image")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    buildah = Buildah(Path(os.environ["STORE"]), os.environ["DRIVER"])
    with buildah.container(given.image) as container:
        entrypoint = [given.entrypoint] if given.entrypoint else container.entrypoint
        done = container.run(
            *entrypoint,
            *given.command,
            environment=environment(given.env, given.env_file),
            mounts=[volume for volume in map(as_volume, given.mount) if volume],
        )
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode


def environment(names: list[str], files: list[Path]) -> dict[str, str]:
    lines = [line for file in files for line in file.read_text().splitlines()]
    pairs = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    return pairs | {name: os.environ[name] for name in names if name in os.environ}


def as_volume(mount: str) -> str | None:
    """``type=bind,source=A,target=B,readonly`` as buildah's ``A:B:ro``."""
    fields = dict(field.partition("=")[::2] for field in mount.split(","))
    if not Path(fields["source"]).exists() and "kit" not in fields["target"]:
        return None
    return f"{fields['source']}:{fields['target']}:{'ro' if 'readonly' in fields else 'rw'}"


if __name__ == "__main__":
    sys.exit(main())
