# SPDX-License-Identifier: Apache-2.0
"""What is on the disk: the rung of each file, the state of each set and of all. Nothing here writes."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path, PurePosixPath

from . import versions
from .chain import Chain
from .errors import Refused
from .manifest import BASE, Package, PatchSet, Symptom, TargetFile, sha256
from .release import Release
from .target import Location, Target, mount_points, require_inside

MAX_SOURCE_BYTES = 64 * 1024 * 1024
"""No source file is larger; what is, is not read into memory to be hashed."""


class FileState(Enum):
    """Of a file, as one set sees it: without its edit, with it, or of no known content."""

    PRISTINE = "pristine"
    APPLIED = "applied"
    DRIFTED = "drifted"
    MISSING = "missing"


class SetState(Enum):
    """Of a set, or of the whole installation. PRISTINE is: nothing of it is there."""

    PRISTINE = "pristine"
    APPLIED = "applied"
    PARTIAL = "partial"
    DRIFTED = "drifted"
    UNSUPPORTED = "unsupported"
    NATIVE = "native"


@dataclass(frozen=True)
class ChainStatus:
    """One file as found. ``text`` is None where there is no such file, ``rung`` where it is on none."""

    chain: Chain
    path: Path
    text: bytes | None
    rung: int | None
    mounted: bool = False
    """The file is a mount point of its own (``docker run -v``)."""
    trouble: Refused | None = None
    """Why it could not be looked at; known only of a file that the base leaves alone."""

    @property
    def found(self) -> str | None:
        """The sha256 of what is there, None for nothing."""
        return None if self.text is None else sha256(self.text)

    @property
    def owner(self) -> str:
        """The set whose edit is the topmost one there; empty for a pristine or unknown file."""
        return self.chain.edits[self.rung - 1].owner if self.rung else ""


@dataclass(frozen=True)
class FileStatus:
    """One file as one set sees it: ``file`` is the edit of the set."""

    file: TargetFile
    on_disk: ChainStatus

    @property
    def state(self) -> FileState:
        if self.on_disk.rung is None:
            return FileState.MISSING if self.on_disk.text is None else FileState.DRIFTED
        is_there = self.on_disk.rung >= self.on_disk.chain.rung_of_edit(self.file)
        return FileState.APPLIED if is_there else FileState.PRISTINE

    @property
    def path(self) -> Path:
        return self.on_disk.path

    @property
    def text(self) -> bytes | None:
        return self.on_disk.text

    @property
    def found(self) -> str | None:
        return self.on_disk.found

    @property
    def mounted(self) -> bool:
        return self.on_disk.mounted


@dataclass(frozen=True)
class SetStatus:
    """One set as found."""

    patch_set: PatchSet
    files: tuple[FileStatus, ...]

    @property
    def name(self) -> str:
        return self.patch_set.name

    @cached_property
    def state(self) -> SetState:
        return combine(status.state for status in self.files)

    @property
    def begun(self) -> bool:
        """At least one of its edits is there."""
        return bool(self.in_state(FileState.APPLIED))

    def in_state(self, *states: FileState) -> tuple[FileStatus, ...]:
        return tuple(status for status in self.files if status.state in states)


def word(status: FileStatus | SetStatus) -> str:
    """What a state is called: a file that an opt-in set has not touched need not be pristine."""
    of_base = (status.file.owner if isinstance(status, FileStatus) else status.name) == BASE
    is_untouched = status.state in {FileState.PRISTINE, SetState.PRISTINE}
    return "not applied" if is_untouched and not of_base else status.state.value


@dataclass(frozen=True)
class Installation:
    """All sets of a release, as found in a target."""

    release: Release
    target: Target
    by_version: SetState | None
    """UNSUPPORTED or NATIVE, where the version strings alone decide."""
    chains: tuple[ChainStatus, ...] = ()

    @cached_property
    def sets(self) -> tuple[SetStatus, ...]:
        """Of the base, then of every opt-in set."""
        on_disk = {status.chain.path: status for status in self.chains}
        return tuple(
            SetStatus(s, tuple(FileStatus(f, on_disk[f.path]) for f in s.files if f.path in on_disk))
            for s in self.release.sets
        )

    @property
    def base(self) -> SetStatus:
        return self.sets[0]

    @property
    def begun(self) -> tuple[SetStatus, ...]:
        """The opt-in sets of which at least a part is there."""
        return tuple(status for status in self.sets[1:] if status.begun)

    @property
    def present(self) -> tuple[SetStatus, ...]:
        """The base, and what is begun on it: what a user of this installation is concerned with."""
        return (self.base, *self.begun)

    @property
    def applied(self) -> frozenset[str]:
        """The names of the sets that are wholly there."""
        return frozenset(s.name for s in self.sets if s.state is SetState.APPLIED)

    @cached_property
    def state(self) -> SetState:
        """Of the base, unless what stands on it is worse."""
        if self.by_version is not None:
            return self.by_version
        found = {status.state for status in self.present}
        if SetState.DRIFTED in found:
            return SetState.DRIFTED
        return found.pop() if len(found) == 1 else SetState.PARTIAL

    @property
    def symptoms(self) -> tuple[Symptom, ...]:
        """What a user of this half-patched installation sees, by the manifests."""
        return tuple(
            symptom
            for status in self.present
            for symptom in status.patch_set.symptoms
            if self._is_shown(symptom, status.name)
        )

    def _is_shown(self, symptom: Symptom, name: str) -> bool:
        def is_applied(path: PurePosixPath) -> bool:
            """By the edit of the set itself where it has one, else by whichever there is."""
            of_path = [f for status in self.sets for f in status.files if f.file.path == path]
            own = [found for found in of_path if found.file.owner == name] or of_path
            return bool(own) and own[0].state is FileState.APPLIED

        return not any(map(is_applied, symptom.without)) and all(map(is_applied, symptom.present))


def combine(states: Iterable[FileState]) -> SetState:
    """The state of a set from those of its files (versions apart)."""
    found = set(states)
    if found & {FileState.DRIFTED, FileState.MISSING}:
        return SetState.DRIFTED
    if found == {FileState.APPLIED}:
        return SetState.APPLIED
    return SetState.PRISTINE if found == {FileState.PRISTINE} else SetState.PARTIAL


def by_version(release: Release, target: Target) -> SetState | None:
    """What the version strings decide on their own, or None where the hashes must."""
    pairs = [(p, target.locations[p.import_name]) for p in release.packages]
    if all(_is_native(package, location) for package, location in pairs):
        return SetState.NATIVE
    if any(is_other_release(package, location) for package, location in pairs):
        return SetState.UNSUPPORTED
    return None


def _is_native(package: Package, location: Location) -> bool:
    found = versions.parse(location.version or "")
    native = versions.parse(package.native_from)
    return found is not None and native is not None and found >= native


def is_other_release(package: Package, location: Location) -> bool:
    """Whether the package names a release that the set was not made for."""
    found = versions.parse(location.version or "")
    return found is not None and found not in {versions.parse(text) for text in package.supported}


def inspect(release: Release, target: Target) -> Installation:
    """Read every set off the disk.

    Raises:
        Refused: a file of the base is a symlink, is no regular file, or cannot be read.
    """
    decided = by_version(release, target)
    if decided is SetState.NATIVE:
        return Installation(release, target, decided)
    require_inside(target, [file.path for file in release.base.files])
    mounts = mount_points()
    return Installation(
        release, target, decided, tuple(_inspect(chain, target, mounts) for chain in release.chains)
    )


def _inspect(chain: Chain, target: Target, mounts: frozenset[Path]) -> ChainStatus:
    path = target.file(chain.path)
    if chain.edits[0].owner == BASE:
        text = read(path)
        return ChainStatus(chain, path, text, chain.rung_of(text), path in mounts)
    try:
        # Whoever uses the base alone does not care what this file is.
        require_inside(target, [chain.path])
        text = read(path)
    except Refused as trouble:
        return ChainStatus(chain, path, None, None, trouble=trouble)
    return ChainStatus(chain, path, text, chain.rung_of(text), path in mounts)


def read(path: Path) -> bytes | None:
    """A source file, None where there is none.

    Raises:
        Refused: it is no regular file, is larger than any source, or cannot be read.
    """
    try:
        if not path.is_file():
            if not path.exists():
                return None
            raise Refused(
                f"{path} is not a regular file", f"mv {shlex.quote(str(path))} /tmp/    # out of the way"
            )
        if path.stat().st_size > MAX_SOURCE_BYTES:
            raise Refused(f"{path} is larger than any source file", "reinstall the package")
        return path.read_bytes()
    except OSError as error:
        raise Refused(f"{path} cannot be read ({error.strerror})", "{again}    # as root") from error
