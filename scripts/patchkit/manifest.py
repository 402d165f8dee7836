# SPDX-License-Identifier: Apache-2.0
"""A patch set as the kit carries it: ``manifest.toml``, the diffs, the new files, the probe."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias

from . import unified_diff
from .errors import BundleDamaged
from .unified_diff import DiffSyntaxError, UnifiedDiff

if TYPE_CHECKING:
    import zipfile

BASE = "base"
"""What a user types for the set of a release that makes the model run."""

ALL = "all"
"""What a user types for every set of a release."""

Folder: TypeAlias = "Path | zipfile.Path"
"""Where the kit's own files lie: a checkout, or the inside of ``kit.pyz``."""

_REINSTALL = "copy the kit again from where you have it"
_SET_NAME = re.compile(r"[a-z][a-z0-9-]*")


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
    """What one set makes of one file: its path below site-packages, and the two contents.

    ``before`` is the sha256 of the file that the set finds, None where there is none;
    ``after`` that of what it makes of it. Exactly one of ``diff`` and ``new_text`` is
    set. ``owner`` is the name of the set.
    """

    path: PurePosixPath
    before: str | None
    after: str
    line_ends: LineEnds
    purpose: str
    diff: UnifiedDiff | None
    new_text: bytes | None
    owner: str

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
class About:
    """What a user must know before choosing an opt-in set, each a sentence or two."""

    does: str
    costs: str
    needs: str
    proved: str


@dataclass(frozen=True)
class PatchSet:
    """One set: the base of a release, or an opt-in one that stands on it.

    ``files`` are in the order of installation. ``probe`` is the source of the set's own
    program for ``verify``; ``about`` is there for an opt-in set alone.
    """

    name: str
    title: str
    files: tuple[TargetFile, ...]
    sentinels: tuple[Sentinel, ...]
    symptoms: tuple[Symptom, ...]
    sha256: str
    """Of ``manifest.toml`` itself: it names a set exactly."""
    probe: str | None = None
    about: About | None = None


@dataclass(frozen=True)
class Place:
    """Where a set lies in the kit."""

    release: str
    name: str = BASE

    @property
    def _folder(self) -> str:
        return self.release if self.name == BASE else f"{self.release}/{self.name}"

    @property
    def patches(self) -> str:
        return f"patches/{self._folder}"

    @property
    def overlay(self) -> str:
        return f"overlay/{self._folder}"

    @property
    def manifest(self) -> str:
        return f"{self.patches}/manifest.toml"


Table: TypeAlias = Mapping[str, Any]


def read_table(bundle: Folder, place: Place) -> tuple[Table, str]:
    """The manifest of a set as TOML has it, and its sha256.

    Raises:
        BundleDamaged: it is absent, unreadable, or no TOML.
    """
    text = _read(bundle / place.manifest, place.manifest)
    try:
        return tomllib.loads(text.decode("utf-8")), sha256(text)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise damaged(f"{place.manifest} is not valid TOML ({error})") from error


@contextmanager
def checked(place: Place) -> Iterator[None]:
    """What does not fit in a table, as one sentence about the manifest."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        reason = f"the key {error} is missing" if isinstance(error, KeyError) else str(error)
        raise damaged(f"{place.manifest} is incomplete: {reason}") from error


def packages(table: Table) -> tuple[Package, ...]:
    return tuple(_package(row) for row in table["package"])


def patch_set(table: Table, digest: str, bundle: Folder, place: Place, imports: frozenset[str]) -> PatchSet:
    """A set of its table; a new file must have the hash that the table gives it.

    ``imports`` are the import names of the packages that its files may lie in.

    Raises:
        BundleDamaged: a file of the kit is absent, unreadable, cut or altered.
        KeyError, TypeError, ValueError: the table is not that of a manifest.
    """
    is_base = place.name == BASE
    found = PatchSet(
        name=place.name,
        title=table["title"],
        files=tuple(_file(row, bundle, place) for row in table["file"]),
        sentinels=tuple(
            Sentinel(_path(row["path"]), row["contains"], _path(row["needed_by"]))
            for row in table.get("sentinel", ())
        ),
        symptoms=tuple(
            Symptom(_paths(row["without"]), _paths(row["with"]), row["text"])
            for row in table.get("symptom", ())
        ),
        sha256=digest,
        probe=_probe(table, bundle, place),
        about=None if is_base else About(*(table[key] for key in ("does", "costs", "needs", "proved"))),
    )
    _require_texts(table, imports)
    return found


def require_name(found: str, place: Place) -> None:
    """A set is called as its folder is, and by nothing that means something else on a command line."""
    expected = place.release if place.name == BASE else place.name
    if found != expected:
        raise ValueError(f"id is {found!r}, in the folder of {expected!r}")
    if place.name == ALL or not _SET_NAME.fullmatch(place.name):
        raise ValueError(f"an opt-in set cannot be called {found!r}")


def _require_texts(table: Table, imports: frozenset[str]) -> None:
    """Every value is a text, a list of texts or a yes, and every path lies in one of the packages."""
    for key, value in table.items():
        if not isinstance(value, str | list):
            raise ValueError(f"{key} is {value!r}")
    for name in ("package", "file", "sentinel", "symptom"):
        for key, value in ((key, value) for row in table.get(name, ()) for key, value in row.items()):
            wanted: type = list if key in {"supported", "without", "with"} else bool if key == "new" else str
            if not isinstance(value, wanted):
                raise ValueError(f"{name}.{key} is {value!r}")
            if key in {"path", "needed_by"} and str(value).split("/")[0] not in imports:
                raise ValueError(f"{value!r} leaves the package")


def _package(row: Table) -> Package:
    return Package(
        import_name=row["import"],
        name=row["name"],
        supported=tuple(row["supported"]),
        native_from=row["native_from"],
        image_folder=PurePosixPath(row["image_folder"]),
    )


def _file(row: Table, bundle: Folder, place: Place) -> TargetFile:
    path = _path(row["path"])
    is_new = row.get("new", False)
    source = _in_kit(row.get("source", f"{place.overlay}/{path}"))
    return TargetFile(
        path=path,
        before=None if is_new else row["before"],
        after=row["after"],
        line_ends=LineEnds(row["line_ends"]),
        purpose=row["purpose"],
        diff=None if is_new else _diff(bundle, f"{place.patches}/{row['patch']}", path),
        new_text=_new_text(bundle, source, row["after"]) if is_new else None,
        owner=place.name,
    )


def _in_kit(name: str) -> str:
    """The name of a new file in the kit, where it may lie: another release's may be shared."""
    path = PurePosixPath(name)
    if path.parts[0] != "overlay" or ".." in path.parts:
        raise ValueError(f"{name!r} is not below overlay/")
    return name


def _probe(table: Table, bundle: Folder, place: Place) -> str | None:
    if "probe" not in table:
        return None
    name = f"{place.patches}/{table['probe']}"
    return _read(bundle / name, name).decode("utf-8")


def _diff(bundle: Folder, name: str, path: PurePosixPath) -> UnifiedDiff:
    try:
        diff = unified_diff.parse(_read(bundle / name, name))
    except DiffSyntaxError as error:
        raise damaged(f"{name} is damaged at line {error.line}: {error.problem}") from error
    if diff.path != str(path):
        raise damaged(f"{name} patches {diff.path}, but the manifest says {path}")
    return diff


def _new_text(bundle: Folder, name: str, expected: str) -> bytes:
    text = _read(bundle / name, name)
    found = sha256(text)
    if found != expected:
        raise damaged(f"{name} was altered: expected sha256 {expected[:12]}, found {found[:12]}")
    return text


def _read(file: Folder, name: str) -> bytes:
    try:
        return file.read_bytes()
    except (OSError, KeyError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not there"
        raise damaged(f"the kit's own file {name} cannot be read ({reason})") from error
    except Exception as error:
        if isinstance(file, Path):
            raise
        # zipfile and zlib have many words for an archive that was cut or altered.
        raise damaged(f"the kit's own file {name} is damaged in the archive ({error})") from error


def damaged(what: str) -> BundleDamaged:
    """The error about a file of the kit itself."""
    return BundleDamaged(what, _REINSTALL)


def _path(text: str) -> PurePosixPath:
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or len(path.parts) < 2:
        raise ValueError(f"{text!r} leaves the package")
    return path


def _paths(texts: list[str]) -> frozenset[PurePosixPath]:
    return frozenset(_path(text) for text in texts)
