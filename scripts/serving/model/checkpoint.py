# SPDX-License-Identifier: Apache-2.0
"""``kit check-model``: is this folder a whole Step-3.7-Flash that vLLM 0.20.2 can load?

Nothing is imported from the folder and no tensor is read, so 1,471 tensors take a second.
"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchkit.errors import Refused
from serving import findings as wording
from serving.bounded import Unreadable, exists, read_json_object
from serving.findings import Finding, Severity, note, problem
from serving.typed import PLAIN, Typed

from . import model_config, remote_code, shards, tensors, tokenizer_files
from .model_config import ModelConfig
from .shards import Shards

CONFIG = "config.json"
CONFIG_LIMIT = 8 * 1024 * 1024
MODELSLIM = "quant_model_description.json"

_INCOMPLETE = frozenset({"no-weights", "tensor-missing", "index-missing", "index-broken"})
"""Findings that make a leftover of a download more than litter."""

_ORDER = (Severity.PROBLEM, Severity.WARNING, Severity.NOTE, Severity.OK)
_GIB = 1 << 30
_READ_SECONDS = 3.0
_READ_BYTES = 2 * _GIB
_READ_CHUNK = 8 << 20


@dataclass(frozen=True)
class Report:
    """All findings about one folder. ``to_fetch`` is None where nothing is missing or nothing can tell."""

    folder: Path
    findings: tuple[Finding, ...]
    shards: int
    tensors: int
    bytes: int
    to_fetch: int | None
    seconds: float

    @property
    def failed(self) -> bool:
        """vLLM would not start from this folder, or would serve wrong answers."""
        return any(finding.severity is Severity.PROBLEM for finding in self.findings)


def check(folder: Path, *, measure_reading: bool = False) -> Report:
    """Look at a model folder.

    Args:
        folder: the folder that ``vllm serve`` would be given.
        measure_reading: read the largest shard for up to 3 s, to say how long loading takes.
    """
    started = time.monotonic()
    if not folder.is_dir():
        return _without_files(folder, _no_folder(folder), started)
    values, found = _config_values(folder)
    if values is None and (snapshots := _snapshots(folder)):
        return _without_files(folder, _cache_root(folder, snapshots), started)
    code = remote_code.inspect(folder, values) if values is not None else None
    reading = model_config.read(values, code.module, code.entry) if values is not None and code else None
    config = reading.config if reading else None
    if reading and code:
        found += [*reading.findings, *code.findings]
    found += tokenizer_files.check(folder, (values or {}).get("image_token_id"))
    files = shards.inspect(folder)
    found += [*_modelslim(folder), *files.findings]
    found += _tensors(config, files, found)
    to_fetch = tensors.bytes_to_fetch(config, files)
    found += _download(folder, files, to_fetch, found)
    if measure_reading:
        found += _read_speed(folder, files)
    held = [tensor for header in files.headers.values() for tensor in header.tensors.values()]
    return Report(
        folder=folder,
        findings=tuple(found),
        shards=len(files.headers),
        tensors=len(held),
        bytes=sum(tensor.bytes_on_disk for tensor in held),
        to_fetch=to_fetch,
        seconds=time.monotonic() - started,
    )


def load_config(folder: Path) -> ModelConfig:
    """The config of a folder, for `memory.plan`.

    Raises:
        Refused: its sizes cannot be known.
    """
    next_step = f"{{kit}} check-model {shlex.quote(str(folder))}"
    try:
        values = read_json_object(folder / CONFIG, CONFIG_LIMIT)
    except Unreadable as error:
        raise Refused(f"{folder / CONFIG} {error}", next_step) from None
    code = remote_code.inspect(folder, values)
    reading = model_config.read(values, code.module, code.entry)
    if reading.config is not None:
        return reading.config
    first, *_ = sorted(reading.findings, key=lambda finding: _ORDER.index(finding.severity))
    raise Refused(
        f"{folder / CONFIG} does not tell the model's sizes: {first.subject} {first.what}", next_step
    )


def text(report: Report, typed: Typed = PLAIN) -> str:
    """The report as a person reads it: what is wrong first."""
    found = sorted(report.findings, key=lambda finding: _ORDER.index(finding.severity))
    verdict = "this folder is NOT fit to be served" if report.failed else "this folder can be served"
    of = f"{report.tensors} tensors in {wording.counted(report.shards, 'shard')}, in {report.seconds:.1f} s"
    return "\n".join(
        [
            f"model folder {report.folder}",
            "",
            *wording.lines(found, typed),
            "",
            f"{verdict}: {wording.tally(found)} ({of}).",
            "Headers alone were read: damage inside a tensor goes unseen.",
        ]
    )


def as_json(report: Report, typed: Typed = PLAIN) -> dict[str, Any]:
    return {
        "folder": str(report.folder),
        "failed": report.failed,
        "shards": report.shards,
        "tensors": report.tensors,
        "bytes": report.bytes,
        "bytes_to_fetch": report.to_fetch,
        "seconds": round(report.seconds, 3),
        "findings": [wording.as_json(finding, typed) for finding in report.findings],
    }


# --- the folder -------------------------------------------------------------------


def _without_files(folder: Path, finding: Finding, started: float) -> Report:
    return Report(folder, (finding,), 0, 0, 0, None, time.monotonic() - started)


def _no_folder(folder: Path) -> Finding:
    what = "is a file, not a folder" if exists(folder) else "is not there"
    cure = "give the path of the folder that holds config.json; names on a hub are not looked up"
    return problem("folder", str(folder), what, cure)


def _snapshots(folder: Path) -> list[Path]:
    """Where the folder is the root of a model in huggingface_hub's cache: its snapshots."""
    try:
        return sorted(path for path in (folder / "snapshots").iterdir() if path.is_dir())
    except OSError:
        return []


def _cache_root(folder: Path, snapshots: list[Path]) -> Finding:
    what = "is the root of a download cache; the model is in a folder below it"
    return problem("folder", str(folder), what, f"give this path instead: {snapshots[-1]}")


def _config_values(folder: Path) -> tuple[Mapping[str, Any] | None, list[Finding]]:
    try:
        return read_json_object(folder / CONFIG, CONFIG_LIMIT), []
    except Unreadable as error:
        cure = "fetch this file of the model's repository again"
        return None, [problem("config-missing", CONFIG, str(error), cure)]


def _modelslim(folder: Path) -> Iterator[Finding]:
    if exists(folder / MODELSLIM):
        what = "marks weights that ModelSlim quantised: vllm-ascend switches its quantised path on by itself"
        yield problem(
            "quantised", MODELSLIM, what, "serve the bfloat16 checkpoint, in a folder without this file"
        )


# --- weights ----------------------------------------------------------------------


def _tensors(config: ModelConfig | None, files: Shards, before: list[Finding]) -> tuple[Finding, ...]:
    """The tensors, where there is something to hold them against."""
    if not files.headers:
        return ()
    if any(finding.name == "quantised" for finding in before):
        return (
            note("tensors", "weights", "not compared with the config: a quantised checkpoint has others"),
        )
    if config is None:
        what = "not compared with the config, whose sizes are not known (see above)"
        return (problem("tensors", "weights", what, "mend config.json first, then check again"),)
    return tensors.check(config, files)


def _download(folder: Path, files: Shards, to_fetch: int | None, before: list[Finding]) -> Iterator[Finding]:
    """Half a download: what is unfinished, and how much is still to come."""
    if not files.unfinished and to_fetch is None:
        return
    names = [f"{_below(folder, path)}: {size} bytes" for path, size in files.unfinished.items()]
    parts = []
    if names:
        parts.append(f"{len(names)} unfinished files, {sum(files.unfinished.values())} bytes in them")
    if files.faults:
        total = len(files.faults) + len(files.headers)
        parts.append(f"{len(files.faults)} of {total} shards are not usable")
    if to_fetch is not None:
        parts.append(f"still to fetch: {to_fetch} bytes ({to_fetch / _GIB:.1f} GiB)")
        free = shutil.disk_usage(folder).free
        if free < to_fetch:
            parts.append(f"only {free / _GIB:.1f} GiB are free here")
    touched = {path.name.removesuffix(path.suffix) for path in files.unfinished} & files.headers.keys()
    if touched:
        parts.append(f"{', '.join(sorted(touched))} may be filled up with zeros")
    if files.faults or touched or any(finding.name in _INCOMPLETE for finding in before):
        cure = f"{shards.AGAIN}, then check again"
        yield problem("half-a-download", "download", "; ".join(parts), cure, names)
    else:
        what = "; ".join([*parts, "every shard is whole"])
        cure = "delete these leftovers, unless a download is under way"
        yield note("half-a-download", "download", what, cure, names)


def _below(folder: Path, path: Path) -> Path:
    return path.relative_to(folder) if path.is_relative_to(folder) else path


def _read_speed(folder: Path, files: Shards) -> Iterator[Finding]:
    """How fast the largest shard reads, at most 2 GiB or 3 s of it. The page cache may flatter it."""
    if not files.headers:
        return
    name = max(files.headers, key=lambda shard: files.headers[shard].file_bytes)
    total = sum(header.file_bytes for header in files.headers.values())
    started = time.monotonic()
    try:
        read = _read_for(folder / name, _READ_SECONDS)
    except OSError as error:
        cure = "look at the disk or the network file system that holds the folder"
        yield problem("read-speed", name, f"cannot be read ({error.strerror})", cure)
        return
    speed = max(read, 1) / max(time.monotonic() - started, 1e-6)
    what = (
        f"{name} reads at {speed / 1e9:.2f} GB/s ({read} bytes, perhaps from memory): at that speed "
        f"one pass over all shards takes {total / speed / 60:.1f} minutes"
    )
    yield note("read-speed", "weights", what)


def _read_for(path: Path, seconds: float) -> int:
    """Bytes that could be read in this time, `_READ_BYTES` at most."""
    started, read = time.monotonic(), 0
    with path.open("rb", buffering=0) as file:
        while read < _READ_BYTES and time.monotonic() - started < seconds:
            chunk = file.read(_READ_CHUNK)
            if not chunk:
                break
            read += len(chunk)
    return read
