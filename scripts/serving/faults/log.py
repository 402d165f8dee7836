# SPDX-License-Identifier: Apache-2.0
"""The lines of a log of any size: in bounded memory, without colours, and no binary for a log."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from patchkit.errors import Refused

_BLOCK = 1 << 20
"""Bytes that are looked at in one go, and at most as many again to finish the last line."""

_COLOUR = re.compile(rb"\x1b\[[0-9;]{0,16}[A-Za-z]")
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\b\a\x1b\0"))
_BINARY_SHARE = 50
"""More than one control character in so many bytes is no text; random bytes have one in ten."""


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file or a pipe, each with its number; one longer than a block comes in pieces.

    Raises:
        Refused: it cannot be read, or is no text.
    """
    try:
        with path.open("rb") as file:
            yield from _lines(file, path)
    except OSError as error:
        raise Refused(f"{path} cannot be read ({error.strerror})", "{kit} explain --log FILE") from error


def _lines(file: IO[bytes], path: Path) -> Iterator[tuple[int, bytes]]:
    number = 1
    while block := file.read(_BLOCK):
        block += file.readline(_BLOCK)
        text = block.replace(b"\0", b"")  # the hole in a log that was cut while it was written to
        _require_text(text, path)
        found = without_colours(text).split(b"\n")
        yield from enumerate(found if found[-1] else found[:-1], number)
        number += len(found) - 1


def without_colours(text: bytes) -> bytes:
    """Without what colours a terminal."""
    return _COLOUR.sub(b"", text) if b"\x1b" in text else text


def _require_text(text: bytes, path: Path) -> None:
    controls = len(text) - len(text.translate(None, _CONTROLS))
    if controls * _BINARY_SHARE > len(text):
        raise Refused(f"{path} is no text: a binary file, or one that is packed", "{kit} explain --log FILE")
