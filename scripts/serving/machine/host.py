# SPDX-License-Identifier: Apache-2.0
"""The one seam to the machine: its files, its environment, ``npu-smi``. Everything is read, nothing written.

Tests give it a folder with a hand-made /proc, /dev and /usr in place of ``/``.
"""

from __future__ import annotations

import contextlib
import os
import platform
import pwd
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path, PurePosixPath

from serving import bounded

from . import processes
from .processes import Output

_TEXT_LIMIT = 16 << 20
"""Bytes. /proc/net/tcp of a machine with 100,000 connections is the largest file that is read."""

_CHUNK = 1 << 16
_MOST_NAMES = 1 << 16
_MOST_PARENTS = 64
_NPU_SMI_TIMEOUT_S = 30.0
_TOOL_FOLDERS = ("/usr/local/bin", "/usr/local/sbin", "/usr/bin", "/usr/sbin")
"""Where npu-smi gets mounted, whatever PATH says."""


@dataclass(frozen=True)
class Space:
    """Of a file system, in bytes. ``free`` is what an ordinary user may fill."""

    total: int
    free: int


def _measure(path: Path) -> Space | None:
    try:
        found = os.statvfs(path)
    except (OSError, ValueError):
        return None
    return Space(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


def _read(path: Path) -> bytes:
    """A file up to just beyond the limit. Those in /proc have a size of 0, whatever they hold."""
    text = bytearray()
    with path.open("rb", buffering=0) as file:
        while len(text) <= _TEXT_LIMIT and (chunk := file.read(_CHUNK)):
            text += chunk
    return bytes(text)


def _groups() -> frozenset[int]:
    return frozenset([os.getegid(), *os.getgroups()])


@dataclass(frozen=True)
class Host:
    """A machine, or a folder that stands for one. Paths are named as the machine names them.

    Nothing here raises for what the machine is like: what is absent, unreadable or too
    large is None, False or empty.
    """

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    uid: int = field(default_factory=os.getuid)
    groups: frozenset[int] = field(default_factory=_groups)
    machine: str = field(default_factory=platform.machine)
    measure: Callable[[Path], Space | None] = _measure

    def variable(self, name: str) -> str:
        """An environment variable, "" where it is unset."""
        return self.environment.get(name, "")

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def _stat(self, name: str) -> os.stat_result | None:
        try:
            return self.path(name).stat()
        except (OSError, ValueError):
            return None

    def exists(self, name: str) -> bool:
        return self._stat(name) is not None

    def is_folder(self, name: str) -> bool:
        found = self._stat(name)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def text(self, name: str) -> str | None:
        """The content of a regular file; bytes that are no UTF-8 are replaced."""
        try:
            if bounded.regular_size(self.path(name)) > _TEXT_LIMIT:
                return None
            text = _read(self.path(name))
        except (bounded.Unreadable, OSError):
            return None
        return text.decode("utf-8", "replace") if len(text) <= _TEXT_LIMIT else None

    def size(self, name: str) -> int:
        """Bytes of a regular file, 0 where there is none."""
        try:
            return bounded.regular_size(self.path(name))
        except bounded.Unreadable:
            return 0

    def names(self, folder: str) -> list[str]:
        """What a folder holds, sorted, but never more than a bound."""
        try:
            with os.scandir(self.path(folder)) as entries:
                return sorted(entry.name for entry in islice(entries, _MOST_NAMES))
        except (OSError, ValueError):
            return []

    def link(self, name: str) -> str:
        """Where a symlink points, "" where it is none."""
        try:
            return str(self.path(name).readlink())
        except (OSError, ValueError):
            return ""

    def permits(self, name: str, write: bool) -> bool:
        """Whether this uid may read, or read and write, what is there; root may unless it is read-only."""
        found = self._stat(name)
        if found is None:
            return False
        wanted = (os.R_OK | os.W_OK) if write else os.R_OK
        return os.access(self.path(name), wanted) and self._bits(found) & wanted == wanted

    def _bits(self, found: os.stat_result) -> int:
        mode = stat.S_IMODE(found.st_mode)
        if self.uid == 0:
            return 0o7
        if found.st_uid == self.uid:
            return mode >> 6
        return mode >> 3 if found.st_gid in self.groups else mode

    def nearest(self, name: str) -> str:
        """``name``, or the nearest folder above it that exists."""
        path = PurePosixPath("/", name)
        candidates = [path, *islice(path.parents, _MOST_PARENTS)]
        return next((str(folder) for folder in candidates if self.exists(str(folder))), "/")

    def space(self, name: str) -> Space | None:
        """Of the file system that ``name`` is or would be on."""
        return self.measure(self.path(self.nearest(name)))

    @cached_property
    def user(self) -> tuple[str, str] | None:
        """Name and home folder of the passwd entry of this uid, or None for an uid without one."""
        for line in (self.text("/etc/passwd") or "").splitlines():
            fields = line.split(":")
            if len(fields) > 5 and fields[2] == str(self.uid):
                return fields[0], fields[5]
        if self.root == Path("/"):
            # The entry may come from a directory service that /etc/passwd knows nothing of.
            with contextlib.suppress(KeyError, OverflowError):
                entry = pwd.getpwuid(self.uid)
                return entry.pw_name, entry.pw_dir
        return None

    @cached_property
    def home(self) -> str:
        """The home folder, as Python's expanduser would have it."""
        return self.variable("HOME") or (self.user[1] if self.user else "/")

    @cached_property
    def npu_smi(self) -> str:
        """The path of npu-smi, "" where there is none."""
        folders = [*filter(None, self.variable("PATH").split(os.pathsep)), *_TOOL_FOLDERS]
        return next(self._in(folders, "npu-smi"), "")

    def _in(self, folders: list[str], name: str) -> Iterator[str]:
        for folder in folders:
            path = f"{folder}/{name}"
            found = self._stat(path)
            if found and stat.S_ISREG(found.st_mode) and os.access(self.path(path), os.X_OK):
                yield path

    @cached_property
    def npu_smi_info(self) -> Output:
        """What ``npu-smi info`` prints, in English whatever the locale, and without what LD_PRELOAD adds."""
        environment = dict(self.environment) | {"LC_ALL": "C", "LANG": "C", "LD_PRELOAD": ""}
        return processes.run((self.path(self.npu_smi), "info"), environment, self.root, _NPU_SMI_TIMEOUT_S)
