# SPDX-License-Identifier: Apache-2.0
"""The full files of an applied set, written to a folder to be mounted or copied.

The kit holds no copy of an upstream file, so these are made from the installation
that is there, pristine or applied, and proved by their hashes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .errors import Refused
from .state import FileState, SetStatus, applied_text
from .transaction import require_changeable


@dataclass(frozen=True)
class Built:
    """One file: where it was written, and where a container has its counterpart."""

    file: Path
    container_path: PurePosixPath

    @property
    def mount_option(self) -> str:
        """The ``docker run`` option that lays the file over the container's, read-only."""
        return f"-v {self.file}:{self.container_path}:ro"


def build(status: SetStatus, folder: Path) -> tuple[Built, ...]:
    """Write every file of the set, applied, below ``folder``.

    Raises:
        Refused: the installation is drifted or another release, or ``folder`` cannot be written.
    """
    require_changeable(status, FileState.APPLIED)
    texts = [(found, applied_text(found)) for found in status.files]
    built = []
    for found, text in texts:
        path = folder / found.file.path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_name(path.name + ".new")
            beside.write_bytes(text)
            beside.chmod(0o644)
            os.replace(beside, path)
        except OSError as error:
            raise Refused(
                f"{path} cannot be written ({error.strerror})", "give another folder with --out"
            ) from error
        built.append(Built(path.resolve(), _container_path(status, found.file.path)))
    return tuple(built)


def _container_path(status: SetStatus, path: PurePosixPath) -> PurePosixPath:
    """Where to mount: over the imported file, or, for a bare folder, as in the official image."""
    if status.target.python is not None:
        return PurePosixPath(status.target.file(path))
    package = status.manifest.package(path.parts[0])
    return package.image_folder.joinpath(*path.parts[1:])
