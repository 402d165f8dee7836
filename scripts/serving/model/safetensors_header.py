# SPDX-License-Identifier: Apache-2.0
"""The header of a safetensors file: which tensors it holds, checked against the file's size.

Format: 8 bytes little-endian length, then that many bytes of JSON, then the tensors' bytes
without gaps (github.com/huggingface/safetensors, "Format"). No tensor is read.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.bounded import Unreadable, json_object, regular_size

MAX_HEADER_BYTES = 100_000_000
"""The format's own bound. The published checkpoint's headers have some ten thousand bytes each."""

MAX_DIMENSIONS = 16

BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("BF16", "F16", "I16", "U16"), 16),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8", "BOOL"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
"""Bits of one element, by the format's names."""

_LENGTH_BYTES = 8
_METADATA = "__metadata__"
_LFS_START = b"version https://git-lfs.github.com/spec/v1"
_LFS_BYTES = 1024


@dataclass(frozen=True)
class Tensor:
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes_on_disk(self) -> int:
        return math.prod(self.shape) * BITS[self.dtype] // 8


@dataclass(frozen=True)
class Header:
    """What a whole file holds: its tensors by name, and the file's size in bytes."""

    tensors: dict[str, Tensor]
    file_bytes: int


class Truncated(Unreadable):
    """The header is whole and the file ends too early."""

    def __init__(self, found: int, needed: int) -> None:
        super().__init__(f"is cut short: {found} bytes, where its own header needs {needed}")
        self.found = found
        self.needed = needed


class Empty(Unreadable):
    """A file without a byte in it."""

    def __init__(self) -> None:
        super().__init__("has no bytes at all")


class LfsPointer(Unreadable):
    """A git-lfs pointer in the place of the file; ``size`` is that of the real one, None if not told."""

    def __init__(self, size: int | None) -> None:
        super().__init__("is a git-lfs pointer, not the file itself")
        self.size = size


def read(path: Path) -> Header:
    """The header, with every offset checked.

    Raises:
        Empty, LfsPointer, Truncated, Unreadable: each says what the file is instead.
    """
    size = regular_size(path)
    if size == 0:
        raise Empty
    try:
        with path.open("rb") as file:
            start = file.read(_LENGTH_BYTES)
            if start and _LFS_START.startswith(start):
                raise LfsPointer(_lfs_size(start + file.read(_LFS_BYTES)))
            length = _length(start, size)
            text = file.read(length)
    except OSError as error:
        raise Unreadable(f"cannot be read ({os.strerror(error.errno or 0)})") from None
    data_start = _LENGTH_BYTES + length
    tensors, data_bytes = _tensors(_header_json(text))
    needed = data_start + data_bytes
    if size < needed:
        raise Truncated(size, needed)
    if size > needed:
        raise Unreadable(f"has {size - needed} bytes behind its last tensor")
    return Header(tensors, size)


def _length(start: bytes, size: int) -> int:
    """The length of the JSON, refused before anything of that length is read."""
    if len(start) < _LENGTH_BYTES:
        raise Unreadable(f"has {size} bytes, too few for a safetensors header")
    length = int.from_bytes(start, "little")
    if length > MAX_HEADER_BYTES:
        raise Unreadable(f"claims a header of {length} bytes, and the format allows {MAX_HEADER_BYTES}")
    if _LENGTH_BYTES + length > size:
        raise Truncated(size, _LENGTH_BYTES + length)
    return length


def _lfs_size(text: bytes) -> int | None:
    for line in text.split(b"\n"):
        digits = line.removeprefix(b"size ").strip()
        if line.startswith(b"size ") and digits.isdigit() and len(digits) < 20:
            return int(digits)
    return None


def _header_json(text: bytes) -> dict[str, Any]:
    try:
        return json_object(text)
    except Unreadable as error:
        raise Unreadable(f"has a header that {error}") from None


def _tensors(header: dict[str, Any]) -> tuple[dict[str, Tensor], int]:
    """The tensors in the order of their bytes, and how many bytes they have together."""
    found: list[tuple[int, int, str, Tensor]] = []
    for name, entry in header.items():
        if name != _METADATA:
            tensor, begin, end = _tensor(name, entry)
            found.append((begin, end, name, tensor))
    found.sort(key=lambda item: item[:2])
    position = 0
    for begin, end, name, tensor in found:
        if begin != position:
            what = "overlaps the one before it" if begin < position else "leaves a gap before it"
            raise Unreadable(f"has a header in which {name[:80]!r} {what}")
        if end - begin != tensor.bytes_on_disk:
            shape = list(tensor.shape)
            what = f"{end - begin} bytes to {tensor.dtype} of shape {shape}, which has {tensor.bytes_on_disk}"
            raise Unreadable(f"has a header that gives {name[:80]!r} {what}")
        position = end
    return {name: tensor for _, _, name, tensor in found}, position


def _tensor(name: str, entry: object) -> tuple[Tensor, int, int]:
    """One entry: the tensor, and where its bytes begin and end behind the header."""
    values = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (
        values.get("dtype"),
        _counts(values.get("shape")),
        _counts(values.get("data_offsets")),
    )
    if not isinstance(dtype, str) or shape is None or offsets is None:
        raise Unreadable(f"has a header whose entry {name[:80]!r} is not a tensor's")
    if dtype not in BITS:
        raise Unreadable(f"has a header that gives {name[:80]!r} the unknown type {dtype[:20]!r}")
    if len(shape) > MAX_DIMENSIONS or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise Unreadable(f"has a header with impossible numbers for {name[:80]!r}")
    return Tensor(dtype, shape), offsets[0], offsets[1]


def _counts(value: object) -> tuple[int, ...] | None:
    """Whole numbers that fit in 64 bits, as the format's offsets and dimensions do."""
    if not isinstance(value, list) or not all(type(item) is int and 0 <= item < 1 << 64 for item in value):
        return None
    return tuple(value)
