# SPDX-License-Identifier: Apache-2.0
"""A picture made on the spot: a PNG of one colour, as a data URL that no server has to fetch."""

from __future__ import annotations

import base64
import struct
import zlib

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_RGB_OF_8_BITS = (8, 2, 0, 0, 0)
"""Bit depth, colour type, compression, filter, interlace (PNG specification, 11.2.2)."""


def png(width: int, height: int, colour: tuple[int, int, int]) -> bytes:
    """A PNG of ``width`` × ``height`` pixels; ``colour`` is red, green, blue of 0 to 255 each."""
    row = b"\0" + bytes(colour) * width  # 0: the row is not filtered
    header = struct.pack(">II5B", width, height, *_RGB_OF_8_BITS)
    pixels = zlib.compress(row * height)
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", pixels) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def data_url(image: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(image).decode()
