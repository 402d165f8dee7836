# SPDX-License-Identifier: Apache-2.0
"""The weight files of a model folder: index, shards, and what a download left unfinished.

Only headers are read. What a shard should hold is judged in `tensors`; this is about files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from serving.bounded import NotThere, Unreadable, exists, read_json_object
from serving.findings import Finding, note, problem, warning

from . import safetensors_header
from .safetensors_header import Empty, Header, LfsPointer, Truncated

INDEX = "model.safetensors.index.json"
INDEX_LIMIT = 64 * 1024 * 1024
"""Bytes. An index of 1,471 tensors has some 130,000."""

AGAIN = "run the same download again, it goes on where it stopped"

_MOST_ENTRIES = 100_000
_MOST_NUMBERED = 10_000
_NUMBERED = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")
_UNFINISHED = (".incomplete", ".aria2", ".part", ".download")
"""What huggingface_hub, aria2, curl-like tools and browsers call a file that is not whole yet."""


@dataclass(frozen=True)
class Fault:
    """A shard that cannot be used. ``missing_bytes`` is None where only the tensors' sizes could tell."""

    finding: Finding
    missing_bytes: int | None


@dataclass(frozen=True)
class Shards:
    """The weight files that vLLM would read, by name.

    ``index`` maps a tensor to its shard, empty where there is no usable index. ``unfinished``
    are leftovers of a download, with their sizes.
    """

    index: Mapping[str, str]
    index_total: int | None
    headers: Mapping[str, Header]
    faults: Mapping[str, Fault]
    unfinished: Mapping[Path, int]
    findings: tuple[Finding, ...]


def inspect(folder: Path) -> Shards:
    """All weight files of a folder; every fault becomes a finding, none an exception."""
    findings: list[Finding] = []
    present = {path.name for path in _entries(folder) if path.name.endswith(".safetensors")}
    index, total = _index(folder, present, findings)
    wanted = set(index.values()) or present | _numbered_siblings(present)
    findings += _beside_the_index(present, wanted)
    if not wanted:
        cure = f"fetch the weights; if a download is under way: {AGAIN}"
        findings.append(problem("no-weights", str(folder), "holds no *.safetensors file", cure))
    headers: dict[str, Header] = {}
    faults: dict[str, Fault] = {}
    for name in sorted(wanted):
        try:
            headers[name] = safetensors_header.read(folder / name)
        except Unreadable as error:
            faults[name] = _fault(folder / name, error)
    findings += [fault.finding for fault in faults.values()]
    unfinished = dict(islice(_unfinished(folder), _MOST_ENTRIES))
    return Shards(index, total, headers, faults, unfinished, tuple(findings))


def _index(folder: Path, present: set[str], findings: list[Finding]) -> tuple[Mapping[str, str], int | None]:
    """Tensor to shard, and the total bytes that the index claims."""
    path = folder / INDEX
    if not exists(path):
        if present and present != {"model.safetensors"}:
            what = "is not there: vLLM then loads every *.safetensors file of the folder"
            findings.append(warning("index-missing", INDEX, what, AGAIN))
        return {}, None
    try:
        values = read_json_object(path, INDEX_LIMIT)
        return _weight_map(values.get("weight_map")), _total_size(values.get("metadata"))
    except Unreadable as error:
        findings.append(problem("index-broken", INDEX, str(error), "fetch this file again"))
        return {}, None


def _weight_map(found: object) -> Mapping[str, str]:
    if not isinstance(found, dict) or not found:
        raise Unreadable("has no weight_map, which vLLM reads")
    for name in set(map(str, found.values())):
        if "/" in name or "\\" in name or "\0" in name or not name.endswith(".safetensors"):
            raise Unreadable(f"names a shard {name[:80]!r}, which is no plain *.safetensors file name")
    return {str(tensor): str(shard) for tensor, shard in found.items()}


def _total_size(metadata: object) -> int | None:
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return int(total) if isinstance(total, int | float) and 0 < total < 1 << 60 else None


def _numbered_siblings(present: set[str]) -> set[str]:
    """Without an index: all of model-00001-of-00024 … from the number in the names that are there."""
    found: set[str] = set()
    for name in present:
        match = _NUMBERED.fullmatch(name)
        if match and int(match["count"]) <= _MOST_NUMBERED:
            count = match["count"]
            stem = match["stem"]
            found |= {f"{stem}-{number:05}-of-{count}.safetensors" for number in range(1, int(count) + 1)}
    return found


def _beside_the_index(present: set[str], wanted: set[str]) -> Iterator[Finding]:
    mistral = sorted(name for name in present if name.startswith("consolidated"))
    if mistral:
        what = "makes vLLM take the folder for one in Mistral's format and read no other weights"
        yield problem("consolidated", mistral[0], what, "move it out of the folder", mistral)
    extra = sorted(present - wanted - set(mistral))
    if extra:
        what = f"{len(extra)} *.safetensors files that the index does not name; vLLM leaves them out"
        yield note("shard-extra", "weights", what, details=extra)


def _fault(path: Path, error: Unreadable) -> Fault:
    """One message for each way in which a shard can fail."""
    name = path.name
    if isinstance(error, NotThere):
        return Fault(problem("shard-missing", name, str(error), AGAIN), None)
    match error:
        case Empty():
            return Fault(problem("shard-empty", name, str(error), f"delete it and {AGAIN}"), None)
        case Truncated():
            missing = error.needed - error.found
            what = f"{error}; {missing} bytes are missing"
            cure = f"{AGAIN}; should it take this file for whole, delete it first"
            return Fault(problem("shard-truncated", name, what, cure), missing)
        case LfsPointer():
            cure = "fetch the files themselves: git lfs pull, or a download tool of the hub"
            return Fault(problem("shard-lfs", name, str(error), cure), error.size)
    return Fault(problem("shard-broken", name, str(error), "delete it and fetch it again"), None)


def _unfinished(folder: Path) -> Iterator[tuple[Path, int]]:
    """Leftovers of huggingface_hub (in the folder, its cache or the blobs behind it), ModelScope, aria2."""
    places = [folder, *_walk(folder / ".cache" / "huggingface" / "download")]
    if folder.parent.name == "snapshots":
        places.append(folder.parent.parent / "blobs")
    for place in places:
        yield from _sizes(path for path in _entries(place) if path.name.endswith(_UNFINISHED))
    for place in _walk(folder / "._____temp"):
        yield from _sizes(_entries(place))


def _walk(folder: Path) -> Iterator[Path]:
    """The folder and those below it; nothing where there is none."""
    for place, _, _ in islice(os.walk(folder), _MOST_ENTRIES):
        yield Path(place)


def _entries(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(
                Path(entry.path) for entry in islice(entries, _MOST_ENTRIES) if not _is_folder(entry)
            )
    except OSError:
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _sizes(paths: Iterable[Path]) -> Iterator[tuple[Path, int]]:
    for path in paths:
        try:
            yield path, path.stat().st_size
        except OSError:
            continue
