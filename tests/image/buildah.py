# SPDX-License-Identifier: Apache-2.0
"""Buildah as the tests use it: a store of its own, and nothing that needs a daemon or a network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TIMEOUT_S = 600


@dataclass(frozen=True)
class Container:
    """A working container. ``run`` starts a command in it without the image's entry point."""

    name: str
    buildah: Buildah
    config: Mapping[str, Any]

    @property
    def entrypoint(self) -> list[str]:
        return list(self.config.get("Entrypoint") or [])

    @property
    def command(self) -> list[str]:
        return list(self.config.get("Cmd") or [])

    def run(
        self,
        *command: str,
        user: str = "",
        environment: Mapping[str, str] | None = None,
        mounts: Sequence[str] = (),
        folder: str = "",
    ) -> subprocess.CompletedProcess[str]:
        options = [option for mount in mounts for option in ("--volume", mount)]
        options += [f"--env={name}={value}" for name, value in (environment or {}).items()]
        options += [f"--user={user}"] if user else []
        options += [f"--workingdir={folder}"] if folder else []
        return self.buildah("run", *options, self.name, "--", *command)

    def start(
        self, *command: str, user: str = "", environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """As a container engine would: the entry point, with the command as its arguments."""
        words = command or self.command
        return self.run(*self.entrypoint, *words, user=user, environment=environment)

    def shell(self, script: str) -> str:
        """What a script that must succeed prints."""
        done = self.run("/bin/sh", "-c", script)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @property
    def root(self) -> Path:
        return Path(self.buildah.output("mount", self.name))


def storage_driver(folder: Path) -> str:
    """``overlay``, as most sites have it, or ``vfs``, which copies everything but works anywhere."""
    layers = [folder / "probe" / name for name in ("lower", "upper", "work", "merged")]
    for layer in layers:
        layer.mkdir(parents=True, exist_ok=True)
    lower, upper, work, merged = layers
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    done = subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", merged], capture_output=True)
    if done.returncode == 0:
        subprocess.run(["umount", merged], check=True)
    shutil.rmtree(folder / "probe")
    return "overlay" if done.returncode == 0 else "vfs"


@dataclass(frozen=True)
class Buildah:
    """The command, bound to a store in ``folder`` by the environment that its users also get."""

    folder: Path
    driver: str = "vfs"
    environment: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        configuration = self.folder / "storage.conf"
        roots = f'graphroot = "{self.folder}/images"\nrunroot = "{self.folder}/run"\n'
        configuration.write_text(f'[storage]\ndriver = "{self.driver}"\n{roots}')
        own = {"CONTAINERS_STORAGE_CONF": str(configuration), "BUILDAH_ISOLATION": "chroot"}
        object.__setattr__(self, "environment", os.environ | own)

    def __call__(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["buildah", *map(str, arguments)],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )

    def output(self, *arguments: str | Path) -> str:
        """What a call that must succeed prints."""
        done = self(*arguments)
        assert done.returncode == 0, f"buildah {arguments}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def build(self, image: str, recipe: Path, context: Path) -> None:
        """Build in one layer, which is what a base image is here."""
        self.output("bud", "--format", "docker", "--pull-never", "-f", recipe, "-t", image, context)

    def has(self, image: str) -> bool:
        return bool(self("images", "--quiet", image).stdout.strip())

    def image_id(self, image: str) -> str:
        return self.output("images", "--quiet", "--no-trunc", image)

    def inspect(self, image: str) -> dict[str, Any]:
        """The image's configuration as docker knows it (Entrypoint, Cmd, Env ...), and its layers."""
        found = json.loads(self.output("inspect", "--type", "image", image))["Docker"]
        config: dict[str, Any] = found["config"]
        return config | {"rootfs": found["rootfs"]["diff_ids"]}

    def layer_sizes(self, image: str) -> dict[str, int]:
        """Each layer's digest, and the bytes of its uncompressed tar archive."""
        known = json.loads((self.folder / "images" / f"{self.driver}-layers" / "layers.json").read_text())
        sizes = {layer["diff-digest"]: layer["diff-size"] for layer in known if "diff-digest" in layer}
        return {digest: sizes[digest] for digest in self.inspect(image)["rootfs"]}

    @contextmanager
    def container(self, image: str) -> Iterator[Container]:
        name = self.output("from", "--pull-never", image)
        try:
            yield Container(name, self, self.inspect(image))
        finally:
            self("rm", name)

    def clear(self, keep: Sequence[str]) -> None:
        """Remove all containers, and all images but those to keep."""
        self("rm", "--all")
        kept = {self.image_id(image) for image in keep if self.has(image)}
        listed = json.loads(self.output("images", "--all", "--json") or "[]") or []
        for image in listed:
            if not any(image["id"] in one for one in kept):
                self("rmi", "--force", image["id"])
