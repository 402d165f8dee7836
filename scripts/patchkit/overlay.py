# SPDX-License-Identifier: Apache-2.0
"""The full files of applied sets, written to a folder to be mounted or copied.

The kit holds no copy of an upstream file, so these are made from the installation
that is there, pristine or applied, and proved by their hashes.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .chain import PRISTINE
from .errors import Refused
from .plan import Wish, goals, require
from .state import Installation

_OTHER_FOLDER = "give another folder with --out"


class NotBuilt(Refused):
    """Writing the overlay failed on the way."""

    outcome = "the installation was not changed, and the overlay is not whole"


@dataclass(frozen=True)
class Built:
    """One file: where it was written, and where a container has its counterpart."""

    file: Path
    container_path: PurePosixPath

    @property
    def mount_option(self) -> str:
        """The ``docker run`` option that lays the file over the container's, read-only."""
        return f"-v {shlex.quote(f'{self.file}:{self.container_path}:ro')}"


def build(found: Installation, wish: Wish, folder: Path) -> tuple[Built, ...]:
    """Write every file of the sets that a wish names, as they make it, below ``folder``.

    Raises:
        Refused: the installation is drifted or another release, or ``folder`` cannot be written.
    """
    texts = require(found, wish)
    files = [goal.on_disk for goal in goals(found, wish) if goal.rung != PRISTINE]
    for status in files:
        _require_place(folder / status.chain.path, status.path)
    built = []
    for status in files:
        name = status.chain.path
        path = folder / name
        try:
            _write(path, texts[name] or b"")
        except OSError as error:
            raise NotBuilt(f"{path} cannot be written ({error.strerror})", _OTHER_FOLDER) from error
        built.append(Built(path.resolve(), _container_path(found, name)))
    return tuple(built)


def _require_place(path: Path, installed: Path) -> None:
    """Refuse to write into the installation: that is ``apply``'s, which locks, checks and keeps modes."""
    if path.parent.resolve() == installed.parent:
        raise Refused(f"{path.parent} is the installation itself", _OTHER_FOLDER)
    if path.is_dir():
        raise Refused(f"{path} is a folder", _OTHER_FOLDER)


def _write(path: Path, text: bytes) -> None:
    """Through a new file of ours beside it, that follows no link and is not left behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
            os.fchmod(descriptor, 0o644)
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise


def _container_path(found: Installation, path: PurePosixPath) -> PurePosixPath:
    """Where to mount: over the imported file, or, for a bare folder, as in the official image."""
    if found.target.python is not None:
        return PurePosixPath(found.target.file(path))
    package = found.release.package(path.parts[0])
    return package.image_folder.joinpath(*path.parts[1:])
