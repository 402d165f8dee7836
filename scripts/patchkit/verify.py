# SPDX-License-Identifier: Apache-2.0
"""What is proved about an installation, level by level. What did not run is not passed.

A run of the kit costs what its imports cost, so what only one level needs is imported there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from .manifest import Manifest
from .state import FileState, FileStatus, SetState, SetStatus, explain_drift, inspect, short
from .target import Target, environment, program

_PROBE_TIMEOUT_S = 600


class Level(Enum):
    BYTES = "bytes"
    NAMES = "names"
    IMPORTS = "imports"


class Result(Enum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Check:
    """One thing looked at: a file of the set, or a behaviour of it once imported."""

    level: Level
    subject: str
    result: Result
    detail: str


@dataclass(frozen=True)
class Verification:
    status: SetStatus
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Nothing failed. (A native release needs no set, and no check.)"""
        return all(check.result is not Result.FAILED for check in self.checks)


def verify(manifest: Manifest, target: Target, levels: frozenset[Level]) -> Verification:
    """Check the installation; ``levels`` are the ones asked for.

    Raises:
        Refused: the target cannot be read.
    """
    status = inspect(manifest, target)
    if status.state is SetState.NATIVE:
        return Verification(status, ())
    checks = [*_bytes(status)]
    if Level.NAMES in levels:
        checks += [_names(file, status) for file in status.files if file.text is not None]
    if Level.IMPORTS in levels:
        broken = any(check.result is Result.FAILED for check in checks)
        checks += _not_asked("the files are not the set's") if broken else _imports(target)
    return Verification(status, tuple(checks))


def _bytes(status: SetStatus) -> Iterator[Check]:
    for found in status.files:
        subject = str(found.file.path)
        if found.state is FileState.APPLIED and status.state is not SetState.UNSUPPORTED:
            yield Check(Level.BYTES, subject, Result.PASSED, f"sha256 {short(found.found)}")
            continue
        detail = f"{found.state.value}: expected sha256 {short(found.file.after)}, found {short(found.found)}"
        if found.state in {FileState.DRIFTED, FileState.MISSING}:
            detail += f"; {explain_drift(found).text}"
        yield Check(Level.BYTES, subject, Result.FAILED, detail)
    for sentinel in status.broken_sentinels:
        detail = f"does not contain {sentinel.contains!r}, which {sentinel.needed_by} relies on"
        yield Check(Level.BYTES, str(sentinel.path), Result.FAILED, detail)


def _names(found: FileStatus, status: SetStatus) -> Check:
    from . import names  # ast and symtable: not for verify --fast

    subject = str(found.file.path)
    problems = names.problems(found.text or b"", subject)
    if not problems:
        return Check(Level.NAMES, subject, Result.PASSED, "compiles, and every name in it is defined")
    detail = "; ".join(f"line {p.line}: {p.text}" if p.line else p.text for p in problems)
    if found.file.before is None:
        registered = "registered, but " if _is_reached(found, status) else ""
        detail = f"{registered}its module fails to import: {detail}"
    return Check(Level.NAMES, subject, Result.FAILED, detail)


def _is_reached(found: FileStatus, status: SetStatus) -> bool:
    """Whether what makes a new file matter is applied, by the manifest's row about its absence."""
    applied = {other.file.path for other in status.in_state(FileState.APPLIED)}
    rows = (row for row in status.manifest.symptoms if row.without == {found.file.path})
    return any(row.present and row.present <= applied for row in rows)


def _not_asked(reason: str) -> list[Check]:
    return [Check(Level.IMPORTS, "a fresh interpreter", Result.NOT_RUN, reason)]


def _imports(target: Target) -> list[Check]:
    """Run ``probe.py`` in the target's interpreter, away from our folders and the user's caches."""
    if target.python is None:
        return _not_asked("--root names a folder, not an interpreter")
    import json
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory(prefix="step3p7-kit-") as scratch:
        answer, model = Path(scratch, "answer.json"), Path(scratch, "model")
        model.mkdir()
        command = [str(target.python), "-P", "-B", "-c", program("probe"), str(answer), str(model)]
        try:
            run = subprocess.run(
                command,
                cwd=scratch,
                env=environment() | _quiet(scratch),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_PROBE_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            return _not_asked(f"it gave no answer in {_PROBE_TIMEOUT_S} s")
        if not answer.is_file():
            last = run.stdout.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no output"]
            return [
                Check(
                    Level.IMPORTS,
                    "a fresh interpreter",
                    Result.FAILED,
                    f"it died with exit code {run.returncode} ({last[0]})",
                )
            ]
        rows = json.loads(answer.read_text("utf-8"))
    return [Check(Level.IMPORTS, row["check"], Result(row["status"]), row["detail"]) for row in rows]


def _quiet(scratch: str) -> dict[str, str]:
    return {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_MODULES_CACHE": f"{scratch}/modules",
        "VLLM_CACHE_ROOT": f"{scratch}/vllm",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_MODELSCOPE": "False",  # else vLLM imports modelscope, which may not be there
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
