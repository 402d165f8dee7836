# SPDX-License-Identifier: Apache-2.0
"""Which byte code belongs to a source, and which of it Python might run by mistake."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from .state import ChainStatus
from .target import Target


def of_source(source: Path, target: Target) -> list[Path]:
    """Every byte code file that is there for a source, of any interpreter."""
    found = target.bytecode_folder(source).glob(f"{source.stem}.*.pyc")
    return sorted(path for path in found if path.is_file())


def stale_of(found: ChainStatus, target: Target) -> Iterator[Path]:
    """Byte code that Python might run though it is of another source (a killed run's, say)."""
    for path in of_source(found.path, target):
        with suppress(FileNotFoundError):
            if not _fits(path, found.path, found.text):
                yield path


def _fits(path: Path, source: Path, text: bytes | None) -> bool:
    """Whether byte code belongs to the source beside it, by its header (PEP 552)."""
    with path.open("rb") as file:
        header = file.read(16)
    if text is None or len(header) < 16:
        return False
    if int.from_bytes(header[4:8], "little") & 1:
        return header[8:16] == importlib.util.source_hash(text)
    mtime = int(source.stat().st_mtime) & 0xFFFFFFFF
    size = len(text) & 0xFFFFFFFF
    return header[8:16] == mtime.to_bytes(4, "little") + size.to_bytes(4, "little")
