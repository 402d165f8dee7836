# SPDX-License-Identifier: Apache-2.0
"""Reads small files of unknown content: regular files only, never more than a bound, any byte."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any


class Unreadable(Exception):
    """A file that is absent, no regular file, too large or not what its name promises; says which."""


class NotThere(Unreadable):
    """There is no such file, or a symlink to nothing."""


def regular_size(path: Path) -> int:
    """The size in bytes of a regular file, or of the one that a symlink leads to.

    Raises:
        NotThere, Unreadable: no such file; a folder, a pipe, a device.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        what = "is a symlink to a file that is not there" if path.is_symlink() else "is not there"
        raise NotThere(what) from None
    except (OSError, ValueError) as error:
        raise Unreadable(f"cannot be looked at ({_reason(error)})") from None
    if not stat.S_ISREG(found.st_mode):
        raise Unreadable("is a folder" if stat.S_ISDIR(found.st_mode) else "is not a regular file")
    return found.st_size


def exists(path: Path) -> bool:
    """There is something of this name, maybe a symlink to nothing; never raises."""
    try:
        path.lstat()
    except (OSError, ValueError):
        return False
    return True


def read(path: Path, limit: int) -> bytes:
    """The whole file.

    Raises:
        Unreadable: as `regular_size`, or larger than ``limit`` bytes.
    """
    size = regular_size(path)
    if size > limit:
        raise Unreadable(f"has {size} bytes, where no more than {limit} make sense")
    try:
        with path.open("rb") as file:
            # One more than its size: a file that grows meanwhile is noticed, and no more is set aside.
            text = file.read(size + 1)
    except OSError as error:
        raise Unreadable(f"cannot be read ({_reason(error)})") from None
    if len(text) > size:
        raise Unreadable("grows while it is being read")
    return text


def read_json_object(path: Path, limit: int) -> dict[str, Any]:
    """The JSON object that a UTF-8 file holds.

    Raises:
        Unreadable: as `read`, or no JSON object.
    """
    return json_object(read(path, limit))


def json_object(text: bytes) -> dict[str, Any]:
    """The JSON object that UTF-8 bytes hold.

    Raises:
        Unreadable: no UTF-8, no JSON, another kind of value, or a key twice in one object.
    """
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError as error:
        raise Unreadable(f"is not JSON: {error.msg}, line {error.lineno}, column {error.colno}") from None
    except UnicodeDecodeError as error:
        raise Unreadable(f"is not UTF-8 at byte {error.start}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise Unreadable(f"is not usable JSON: {type(error).__name__}") from None
    if not isinstance(value, dict):
        raise Unreadable(f"holds a JSON {type(value).__name__}, not an object")
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise Unreadable(f"names {key[:80]!r} twice in one object")
        found[key] = value
    return found


def _reason(error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if number else str(error)
