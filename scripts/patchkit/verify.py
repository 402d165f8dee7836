# SPDX-License-Identifier: Apache-2.0
"""What is proved about an installation, level by level. What did not run is not passed.

A run of the kit costs what its imports cost, so what only one level needs is imported there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from . import drift, plan
from .chain import short
from .manifest import BASE, PatchSet
from .release import Release
from .state import FileState, FileStatus, Installation, SetState, SetStatus, inspect, word
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
    """One thing looked at: a file of a set, or a behaviour of it once imported."""

    set: str
    level: Level
    subject: str
    result: Result
    detail: str


@dataclass(frozen=True)
class Verification:
    found: Installation
    sets: frozenset[str]
    """The names of those that were looked at."""
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Nothing failed. (A native release needs no set, and no check.)"""
        return all(check.result is not Result.FAILED for check in self.checks)


def verify(
    release: Release, target: Target, levels: frozenset[Level], names: Sequence[str] = ()
) -> Verification:
    """Check the base and the named opt-in sets, or those that are there; ``levels`` are the ones asked for.

    Raises:
        Refused: the target cannot be read; there is no such set.
    """
    found = inspect(release, target)
    asked = plan.named(release, names) | {found.base.name} if names else {s.name for s in found.present}
    if found.state is SetState.NATIVE:
        return Verification(found, frozenset(asked), ())
    sets = [status for status in found.sets if status.name in asked]
    checks = [*_bytes(found, sets)]
    if Level.NAMES in levels:
        checks += [_names(file, found) for file in _each_once(sets) if file.text is not None]
    if Level.IMPORTS in levels:
        broken = any(check.result is Result.FAILED for check in checks)
        reason = "the files are not the set's" if broken else ""
        for status in sets:
            checks += _not_asked(status.patch_set, reason) if reason else _imports(status.patch_set, target)
    return Verification(found, frozenset(asked), tuple(checks))


def _each_once(sets: Sequence[SetStatus]) -> list[FileStatus]:
    """The files of some sets; one that two of them edit is the upper one's."""
    files = {file.file.path: file for status in sets for file in status.files}
    return list(files.values())


def _bytes(found: Installation, sets: Sequence[SetStatus]) -> Iterator[Check]:
    for file in _each_once(sets):
        subject, owner = str(file.file.path), file.file.owner
        if file.state is FileState.APPLIED and found.state is not SetState.UNSUPPORTED:
            yield Check(owner, Level.BYTES, subject, Result.PASSED, f"sha256 {short(file.found)}")
            continue
        detail = f"{word(file)}: expected sha256 {short(file.file.after)}, found {short(file.found)}"
        if file.state in {FileState.DRIFTED, FileState.MISSING}:
            detail += f"; {drift.explain(file, found.release)}"
        yield Check(owner, Level.BYTES, subject, Result.FAILED, detail)
    for status in sets:
        for sentinel in plan.missed(found, status.patch_set, {}):
            detail = f"does not contain {sentinel.contains!r}, which {sentinel.needed_by} relies on"
            yield Check(status.name, Level.BYTES, str(sentinel.path), Result.FAILED, detail)


def _names(file: FileStatus, found: Installation) -> Check:
    from . import names  # ast and symtable: not for verify --fast

    subject, owner = str(file.file.path), file.file.owner
    problems = names.problems(file.text or b"", subject)
    if not problems:
        return Check(owner, Level.NAMES, subject, Result.PASSED, "compiles, and every name in it is defined")
    detail = "; ".join(f"line {p.line}: {p.text}" if p.line else p.text for p in problems)
    if file.file.before is None:
        registered = "registered, but " if _is_reached(file, found) else ""
        detail = f"{registered}its module fails to import: {detail}"
    return Check(owner, Level.NAMES, subject, Result.FAILED, detail)


def _is_reached(file: FileStatus, found: Installation) -> bool:
    """Whether what makes a new file matter is applied, by the manifest's row about its absence."""
    applied = {f.file.path for status in found.sets for f in status.in_state(FileState.APPLIED)}
    rows = (row for s in found.sets for row in s.patch_set.symptoms if row.without == {file.file.path})
    return any(row.present and row.present <= applied for row in rows)


def _not_asked(patch_set: PatchSet, reason: str) -> list[Check]:
    return [Check(patch_set.name, Level.IMPORTS, "a fresh interpreter", Result.NOT_RUN, reason)]


def _imports(patch_set: PatchSet, target: Target) -> list[Check]:
    """Run the set's probe in the target's interpreter, away from our folders and the user's caches."""
    if target.python is None:
        return _not_asked(patch_set, "--root names a folder, not an interpreter")
    source = patch_set.probe or (program("probe") if patch_set.name == BASE else None)
    if source is None:
        return _not_asked(patch_set, "this set has no probe")
    import json
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory(prefix="step3p7-kit-") as scratch:
        answer, model = Path(scratch, "answer.json"), Path(scratch, "model")
        model.mkdir()
        command = [str(target.python), "-P", "-B", "-c", source, str(answer), str(model)]
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
            return _not_asked(patch_set, f"it gave no answer in {_PROBE_TIMEOUT_S} s")
        if not answer.is_file():
            last = run.stdout.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no output"]
            return [
                Check(
                    patch_set.name,
                    Level.IMPORTS,
                    "a fresh interpreter",
                    Result.FAILED,
                    f"it died with exit code {run.returncode} ({last[0]})",
                )
            ]
        rows = json.loads(answer.read_text("utf-8"))
    return [
        Check(patch_set.name, Level.IMPORTS, row["check"], Result(row["status"]), row["detail"])
        for row in rows
    ]


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
