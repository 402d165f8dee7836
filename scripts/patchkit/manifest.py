# SPDX-License-Identifier: Apache-2.0
"""The patch set as the kit carries it: ``manifest.toml``, the diffs, the new files."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias

from . import unified_diff
from .errors import BundleDamaged
from .unified_diff import DiffSyntaxError, UnifiedDiff

if TYPE_CHECKING:
    import zipfile

DEFAULT_SET = "v0.20.2rc1"

Folder: TypeAlias = "Path | zipfile.Path"
"""Where the kit's own files lie: a checkout, or the inside of ``kit.pyz``."""

_REINSTALL = "copy the kit again from where you have it"


class LineEnds(Enum):
    LF = "lf"
    CRLF = "crlf"

    def normalise(self, text: bytes) -> bytes:
        """``text`` with every line end turned into this one."""
        lf = text.replace(b"\r\n", b"\n")
        return lf if self is LineEnds.LF else lf.replace(b"\n", b"\r\n")


def sha256(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


@dataclass(frozen=True)
class Package:
    """One of the packages that hold the target files."""

    import_name: str
    name: str
    supported: tuple[str, ...]
    native_from: str
    image_folder: PurePosixPath
    """Where the official image has it."""


@dataclass(frozen=True)
class TargetFile:
    """One file of the set: its path below site-packages, and its two states.

    ``before`` is the sha256 of the pristine file, None where upstream has no such
    file; ``after`` that of the applied one. Exactly one of ``diff`` and ``new_text``
    is set.
    """

    path: PurePosixPath
    before: str | None
    after: str
    line_ends: LineEnds
    purpose: str
    diff: UnifiedDiff | None
    new_text: bytes | None

    @property
    def package(self) -> str:
        return self.path.parts[0]


@dataclass(frozen=True)
class Sentinel:
    """Text that must stand in a neighbour, because ``needed_by`` relies on it."""

    path: PurePosixPath
    contains: str
    needed_by: PurePosixPath


@dataclass(frozen=True)
class Symptom:
    """What a user sees when ``without`` is not applied while ``present`` is."""

    without: frozenset[PurePosixPath]
    present: frozenset[PurePosixPath]
    text: str


@dataclass(frozen=True)
class Manifest:
    """A whole patch set. ``files`` are in the order of installation."""

    id: str
    title: str
    architecture: str
    packages: tuple[Package, ...]
    files: tuple[TargetFile, ...]
    sentinels: tuple[Sentinel, ...]
    symptoms: tuple[Symptom, ...]
    sha256: str
    """Of ``manifest.toml`` itself: it names a set exactly."""

    def package(self, import_name: str) -> Package:
        return next(p for p in self.packages if p.import_name == import_name)


def load(bundle: Folder, set_id: str = DEFAULT_SET) -> Manifest:
    """Read and check a patch set; a new file must have the hash the manifest gives it.

    Raises:
        BundleDamaged: a file of the kit is absent, unreadable, cut or altered.
    """
    folder = bundle / "patches" / set_id
    text = _read(folder / "manifest.toml", f"patches/{set_id}/manifest.toml")
    try:
        table = tomllib.loads(text.decode("utf-8"))
        return _manifest(table, bundle, set_id, sha256(text))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise _damaged(f"patches/{set_id}/manifest.toml is not valid TOML ({error})") from error
    except (KeyError, TypeError, ValueError) as error:
        reason = f"the key {error} is missing" if isinstance(error, KeyError) else str(error)
        raise _damaged(f"patches/{set_id}/manifest.toml is incomplete: {reason}") from error


def _manifest(table: Mapping[str, Any], bundle: Folder, set_id: str, digest: str) -> Manifest:
    manifest = Manifest(
        id=table["id"],
        title=table["title"],
        architecture=table["architecture"],
        packages=tuple(_package(row) for row in table["package"]),
        files=tuple(_file(row, bundle, set_id) for row in table["file"]),
        sentinels=tuple(
            Sentinel(_path(row["path"]), row["contains"], _path(row["needed_by"]))
            for row in table.get("sentinel", ())
        ),
        symptoms=tuple(
            Symptom(_paths(row["without"]), _paths(row["with"]), row["text"])
            for row in table.get("symptom", ())
        ),
        sha256=digest,
    )
    _require_texts(table)
    return manifest


def _require_texts(table: Mapping[str, Any]) -> None:
    """Every value is a text, a list of texts or a yes, and every path lies in one of the packages."""
    packages = {row["import"] for row in table["package"]}
    for name in ("package", "file", "sentinel", "symptom"):
        for key, value in ((key, value) for row in table.get(name, ()) for key, value in row.items()):
            wanted: type = list if key in {"supported", "without", "with"} else bool if key == "new" else str
            if not isinstance(value, wanted):
                raise ValueError(f"{name}.{key} is {value!r}")
            if key in {"path", "needed_by"} and str(value).split("/")[0] not in packages:
                raise ValueError(f"{value!r} leaves the package")


def _package(row: Mapping[str, Any]) -> Package:
    return Package(
        import_name=row["import"],
        name=row["name"],
        supported=tuple(row["supported"]),
        native_from=row["native_from"],
        image_folder=PurePosixPath(row["image_folder"]),
    )


def _file(row: Mapping[str, Any], bundle: Folder, set_id: str) -> TargetFile:
    path = _path(row["path"])
    is_new = row.get("new", False)
    return TargetFile(
        path=path,
        before=None if is_new else row["before"],
        after=row["after"],
        line_ends=LineEnds(row["line_ends"]),
        purpose=row["purpose"],
        diff=None if is_new else _diff(bundle, f"patches/{set_id}/{row['patch']}", path),
        new_text=_new_text(bundle, f"overlay/{set_id}/{path}", row["after"]) if is_new else None,
    )


def _diff(bundle: Folder, name: str, path: PurePosixPath) -> UnifiedDiff:
    try:
        diff = unified_diff.parse(_read(bundle / name, name))
    except DiffSyntaxError as error:
        raise _damaged(f"{name} is damaged at line {error.line}: {error.problem}") from error
    if diff.path != str(path):
        raise _damaged(f"{name} patches {diff.path}, but the manifest says {path}")
    return diff


def _new_text(bundle: Folder, name: str, expected: str) -> bytes:
    text = _read(bundle / name, name)
    found = sha256(text)
    if found != expected:
        raise _damaged(f"{name} was altered: expected sha256 {expected[:12]}, found {found[:12]}")
    return text


def _read(file: Folder, name: str) -> bytes:
    try:
        return file.read_bytes()
    except (OSError, KeyError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not there"
        raise _damaged(f"the kit's own file {name} cannot be read ({reason})") from error
    except Exception as error:
        if isinstance(file, Path):
            raise
        # zipfile and zlib have many words for an archive that was cut or altered.
        raise _damaged(f"the kit's own file {name} is damaged in the archive ({error})") from error


def _damaged(what: str) -> BundleDamaged:
    return BundleDamaged(what, _REINSTALL)


def _path(text: str) -> PurePosixPath:
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or len(path.parts) < 2:
        raise ValueError(f"{text!r} leaves the package")
    return path


def _paths(texts: list[str]) -> frozenset[PurePosixPath]:
    return frozenset(_path(text) for text in texts)
