# SPDX-License-Identifier: Apache-2.0
"""What is on the disk, and what would have to change. Nothing here writes."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath

from . import versions
from .errors import Refused
from .manifest import LineEnds, Manifest, Package, Sentinel, Symptom, TargetFile, sha256
from .target import Location, Target, mount_points, require_inside
from .unified_diff import Mismatch, UnifiedDiff

MAX_SOURCE_BYTES = 64 * 1024 * 1024
"""No source file is larger; what is, is not read into memory to be hashed."""


class FileState(Enum):
    PRISTINE = "pristine"
    APPLIED = "applied"
    DRIFTED = "drifted"
    MISSING = "missing"


class SetState(Enum):
    PRISTINE = "pristine"
    APPLIED = "applied"
    PARTIAL = "partial"
    DRIFTED = "drifted"
    UNSUPPORTED = "unsupported"
    NATIVE = "native"


@dataclass(frozen=True)
class FileStatus:
    """One file of the set as found. ``text`` is None where there is no such file."""

    file: TargetFile
    path: Path
    text: bytes | None
    state: FileState
    mounted: bool = False
    """The file is a mount point of its own (``docker run -v``)."""

    @property
    def found(self) -> str | None:
        """The sha256 of what is there, None for nothing."""
        return None if self.text is None else sha256(self.text)


@dataclass(frozen=True)
class SetStatus:
    """The whole set as found."""

    manifest: Manifest
    target: Target
    state: SetState
    files: tuple[FileStatus, ...]
    broken_sentinels: tuple[Sentinel, ...]

    def in_state(self, *states: FileState) -> tuple[FileStatus, ...]:
        return tuple(status for status in self.files if status.state in states)

    @property
    def symptoms(self) -> tuple[Symptom, ...]:
        """What a user of this half-patched installation sees, by the manifest."""
        applied = {status.file.path for status in self.in_state(FileState.APPLIED)}
        return tuple(
            symptom
            for symptom in self.manifest.symptoms
            if not symptom.without & applied and symptom.present <= applied
        )


@dataclass(frozen=True)
class Change:
    """One file from one content to another; None is "no such file"."""

    path: Path
    name: PurePosixPath
    before: bytes | None
    after: bytes | None


def classify(file: TargetFile, text: bytes | None) -> FileState:
    """The state of one file, by its hash alone."""
    found = None if text is None else sha256(text)
    if found == file.after:
        return FileState.APPLIED
    if found == file.before:
        return FileState.PRISTINE
    return FileState.MISSING if text is None else FileState.DRIFTED


def combine(states: Iterable[FileState]) -> SetState:
    """The state of a set from those of its files (versions apart)."""
    found = set(states)
    if found & {FileState.DRIFTED, FileState.MISSING}:
        return SetState.DRIFTED
    if found == {FileState.APPLIED}:
        return SetState.APPLIED
    return SetState.PRISTINE if found == {FileState.PRISTINE} else SetState.PARTIAL


def by_version(manifest: Manifest, target: Target) -> SetState | None:
    """What the version strings decide on their own, or None where the hashes must."""
    pairs = [(p, target.locations[p.import_name]) for p in manifest.packages]
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


def inspect(manifest: Manifest, target: Target) -> SetStatus:
    """Read the set off the disk.

    Raises:
        Refused: a file is a symlink, is no regular file, or cannot be read.
    """
    decided = by_version(manifest, target)
    if decided is SetState.NATIVE:
        return SetStatus(manifest, target, decided, (), ())
    require_inside(target, [file.path for file in manifest.files])
    mounts = mount_points()
    files = tuple(_inspect_file(file, target.file(file.path), mounts) for file in manifest.files)
    state = decided or combine(status.state for status in files)
    broken = tuple(s for s in manifest.sentinels if not _holds(s, target))
    return SetStatus(manifest, target, state, files, broken)


def _inspect_file(file: TargetFile, path: Path, mounts: frozenset[Path]) -> FileStatus:
    text = _read(path)
    return FileStatus(file, path, text, classify(file, text), path in mounts)


def _read(path: Path) -> bytes | None:
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


def _holds(sentinel: Sentinel, target: Target) -> bool:
    text = _read(target.file(sentinel.path))
    return text is not None and sentinel.contains.encode() in text


def pristine_text(status: FileStatus) -> bytes | None:
    """The content of a pristine or applied file before the set."""
    return _turn(status, FileState.PRISTINE)


def applied_text(status: FileStatus) -> bytes:
    """The content of a pristine or applied file with the set."""
    text = _turn(status, FileState.APPLIED)
    assert text is not None  # noqa: S101 - only a pristine text can be None
    return text


def _turn(status: FileStatus, goal: FileState) -> bytes | None:
    """The text of ``goal``, computed and proved by its hash.

    Raises:
        Refused: the diff does not lead to the hash that the manifest names.
    """
    file = status.file
    if status.state is goal:
        return status.text
    expected = file.before if goal is FileState.PRISTINE else file.after
    text = _other_side(file, status.text, goal)
    found = None if text is None else sha256(text)
    if found != expected:
        raise Refused(
            f"the patch of {file.path} leads to sha256 {short(found)}, the manifest says {short(expected)}, "
            "so the kit itself is damaged",
            "copy the kit again from where you have it",
        )
    return text


def _other_side(file: TargetFile, text: bytes | None, goal: FileState) -> bytes | None:
    if file.diff is None:
        return file.new_text if goal is FileState.APPLIED else None
    diff = file.diff if goal is FileState.APPLIED else file.diff.reversed()
    try:
        return diff.apply(text or b"")
    except Mismatch as mismatch:
        raise Refused(
            f"the patch of {file.path} does not fit its own pre-image at line {mismatch.line}, "
            "so the kit itself is damaged",
            "copy the kit again from where you have it",
        ) from mismatch


def changes_to(status: SetStatus, goal: FileState) -> tuple[Change, ...]:
    """What to write to bring a pristine, applied or partial set to ``goal``, in order.

    Raises:
        Refused: the kit is damaged, or a file to change is a bind mount.
    """
    todo = [s for s in status.files if s.state is not goal]
    if goal is FileState.PRISTINE:
        todo.reverse()
    changes = tuple(Change(s.path, s.file.path, s.text, _turn(s, goal)) for s in todo)
    for found in todo:
        if found.mounted:
            raise Refused(
                f"{found.path} is a bind mount (docker run -v ...), which cannot be replaced from inside",
                "start the container without that -v option, or mount what this builds: {kit} overlay",
            )
    return changes


@dataclass(frozen=True)
class Drift:
    """Why a file is neither pristine nor applied, as far as its text tells."""

    text: str


def explain_drift(status: FileStatus) -> Drift:
    """One clause about a drifted or missing file: its line ends, a hand-made edit, the first odd line."""
    file, text = status.file, status.text
    if text is None:
        return Drift("the file is absent")
    if state := _state_with_other_line_ends(file, text):
        found = "LF" if file.line_ends is LineEnds.CRLF else "CRLF"
        return Drift(f"the same text as the {state.value} file, with other line ends ({found})")
    if file.diff is None:
        return Drift("another file of that name, not the kit's")
    try:
        file.diff.apply(text)
    except Mismatch as mismatch:
        if mismatch.found in _added_lines(file.diff):
            return Drift(f"edited by hand: line {mismatch.line} is already as the patch makes it")
        return Drift(
            f"line {mismatch.line}: expected {_show(mismatch.expected)}, found {_show(mismatch.found)}"
        )
    return Drift("the lines around the edits are as expected, the difference lies elsewhere")


def _state_with_other_line_ends(file: TargetFile, text: bytes) -> FileState | None:
    state = classify(file, file.line_ends.normalise(text))
    return state if state in {FileState.PRISTINE, FileState.APPLIED} else None


def _added_lines(diff: UnifiedDiff) -> set[bytes]:
    return {line for hunk in diff.hunks for line in hunk.new if line not in hunk.old}


def _show(line: bytes | None) -> str:
    if line is None:
        return "the end of the file"
    text = line.decode("utf-8", "replace").rstrip("\r\n").strip()
    return repr(text if len(text) <= 60 else text[:57] + "...")


def short(digest: str | None) -> str:
    """The 12 hex digits of a hash that messages show; "absent" for no file."""
    return "absent" if digest is None else digest[:12]
