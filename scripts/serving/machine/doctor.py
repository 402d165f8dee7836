# SPDX-License-Identifier: Apache-2.0
"""Runs every check, survives every machine, and reports once."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchkit.errors import KitError, Refused
from patchkit.release import Release
from patchkit.target import Target
from serving import findings
from serving.findings import Finding, Severity
from serving.typed import PLAIN, Typed

from . import reference
from .checks import CHECKS
from .diagnosis import Check, Diagnosis, Group, not_looked_at, warning
from .host import Host
from .patient import Patient


@dataclass(frozen=True)
class Examination:
    """Everything that was seen, in the order of the report."""

    findings: tuple[Diagnosis, ...]

    @property
    def failed(self) -> bool:
        """There is a problem: the server would not start, or would compute wrong numbers."""
        return bool(self.of(Severity.PROBLEM))

    def of(self, severity: Severity) -> tuple[Diagnosis, ...]:
        return tuple(item for item in self.findings if item.finding.severity is severity)


def examine(
    host: Host,
    release: Release,
    target: Target | KitError,
    ignore: frozenset[str] = frozenset(),
    *,
    port: int = reference.SERVE_PORT,
    model: Path | None = None,
) -> Examination:
    """Run all checks but the ignored ones. ``target`` is the error where no installation was found.

    Raises:
        Refused: ``ignore`` names a check that does not exist.
    """
    if unknown := sorted(ignore - {check.name for check in CHECKS}):
        raise Refused(
            f"there is no check called {', '.join(unknown)}", "see their names: {kit} doctor --list"
        )
    patient = Patient(host, release, target, port, model)
    return Examination(
        tuple(check.diagnose(found) for check in CHECKS for found in _look(check, patient, ignore))
    )


def _look(check: Check, patient: Patient, ignore: frozenset[str]) -> Iterable[Finding]:
    """What the check sees; where it breaks, that."""
    if check.name in ignore:
        return [not_looked_at("left out by --ignore")]
    try:
        return list(check.look(patient))
    except KitError as error:
        return [_could_not(check, error.what, error.next_step.replace("{again}", "{kit} doctor"))]
    except Exception as error:
        # A doctor that dies of what it examines helps nobody: the other checks still have a say.
        where = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {error} (line {where.lineno} of {Path(where.filename).name})"
        return [_could_not(check, what, f"{{kit}} doctor --ignore {check.name}")]


def _could_not(check: Check, what: str, cure: str) -> Finding:
    return warning(
        f"check {check.name} failed: {what}",
        expected="an answer",
        why="what it looks at is unknown now, good or bad",
        cure=cure,
    )


def checks() -> tuple[tuple[str, str], ...]:
    """Name and summary of every check, for ``--list``."""
    return tuple((check.name, check.summary) for check in CHECKS)


def text(examination: Examination, typed: Typed = PLAIN) -> str:
    """The report for a person: by group, what is wrong in full, what is right in one line."""
    lines: list[str] = []
    for group in Group:
        of_group = [item.finding for item in examination.findings if item.check.group is group]
        if of_group:
            lines += [f"{group.value}:", *findings.lines(of_group, typed), ""]
    return "\n".join([*lines, _verdict(examination)])


def _verdict(examination: Examination) -> str:
    words = {Severity.PROBLEM: "problem", Severity.WARNING: "warning", Severity.NOTE: "note"}
    counts = [
        findings.counted(len(found), word) for kind, word in words.items() if (found := examination.of(kind))
    ]
    counts += [f"{len(examination.of(Severity.OK))} ok"]
    if unseen := examination.of(Severity.NOT_LOOKED_AT):
        counts.append(f"{len(unseen)} not looked at")
    tally = ", ".join(counts) + "."
    if not examination.failed:
        return f"no problem found: {tally}"
    names = dict.fromkeys(item.check.name for item in examination.of(Severity.PROBLEM))
    return (
        f"PROBLEMS in {', '.join(names)}: {tally} Cure the first one first: later ones often follow from it."
    )


def as_json(examination: Examination, typed: Typed = PLAIN) -> dict[str, Any]:
    """The report for a program; the names of checks and severities are stable."""
    return {
        "failed": examination.failed,
        "counts": {severity.value: len(examination.of(severity)) for severity in Severity},
        "findings": [
            findings.as_json(item.finding, typed) | {"group": item.check.group.name.lower()}
            for item in examination.findings
        ],
    }
