# SPDX-License-Identifier: Apache-2.0
"""Build kit.pyz: the whole kit in one file that Python runs as it is.

    python3 scripts/build_pyz.py OUTPUT

The same sources give the same bytes: names in order, one date for all.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
DATE = (1980, 1, 1, 0, 0, 0)  # the oldest that a zip file can name
MODE = 0o644 << 16
TEXTS = ("LICENSE", "NOTICE")


def members() -> Iterator[tuple[str, Path]]:
    """Every file of the archive: its name there, and where it comes from."""
    scripts = PROJECT / "scripts"
    yield "__main__.py", scripts / "kit"
    yield "cli.py", scripts / "cli.py"
    yield from below(scripts / "commands", scripts)
    yield from below(scripts / "patchkit", scripts)
    yield from below(scripts / "serving", scripts)
    yield from below(PROJECT / "patches", PROJECT)
    yield from below(PROJECT / "overlay", PROJECT)
    for name in TEXTS:
        yield name, PROJECT / name


def below(folder: Path, base: Path) -> Iterator[tuple[str, Path]]:
    """The files of a folder, without the caches of Python and its tools."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(base)
        if path.is_file() and not any(part.startswith((".", "__pycache__")) for part in name.parts):
            yield str(name), path


def build(output: Path) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("wb") as file:
        file.write(b"#!/usr/bin/env -S python3 -I -S\n")
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, path in members():
                entry = zipfile.ZipInfo(name, DATE)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = MODE
                archive.writestr(entry, path.read_bytes())
    output.chmod(0o755)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
    print(f"{sys.argv[1]}: {Path(sys.argv[1]).stat().st_size} bytes")
