# SPDX-License-Identifier: Apache-2.0
"""Runs every check, survives every machine, and reports once."""

from __future__ import annotations

import textwrap
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from patchkit.errors import KitError, Refused
from patchkit.release import Release
from patchkit.target import Target

from . import reference
from .checks import CHECKS
from .diagnosis import Check, Diagnosis, Group, Observation, Status, not_looked_at, warning
from .host import Host
from .patient import Patient

_WIDTH = 110
_MARKS = {
    Status.OK: "ok",
    Status.NOTE: "note",
    Status.WARNING: "warning",
    Status.PROBLEM: "PROBLEM",
    Status.NOT_LOOKED_AT: "-",
}
_MARK_WIDTH = max(len(mark) for mark in _MARKS.values())
_INDENT = " " * (2 + _MARK_WIDTH + 1)


@dataclass(frozen=True)
class Examination:
    """Everything that was seen, in the order of the report."""

    findings: tuple[Diagnosis, ...]

    @property
    def failed(self) -> bool:
        """There is a problem: the server would not start, or would compute wrong numbers."""
        return bool(self.of(Status.PROBLEM))

    def of(self, status: Status) -> tuple[Diagnosis, ...]:
        return tuple(finding for finding in self.findings if finding.observation.status is status)


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
        tuple(
            Diagnosis(check, observation) for check in CHECKS for observation in _look(check, patient, ignore)
        )
    )


def _look(check: Check, patient: Patient, ignore: frozenset[str]) -> Iterable[Observation]:
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


def _could_not(check: Check, what: str, cure: str) -> Observation:
    return warning(
        f"check {check.name} failed: {what}",
        expected="an answer",
        why="what it looks at is unknown now, good or bad",
        cure=cure,
    )


def checks() -> tuple[tuple[str, str], ...]:
    """Name and summary of every check, for ``--list``."""
    return tuple((check.name, check.summary) for check in CHECKS)


def text(examination: Examination, kit: str = "kit", options: str = "") -> str:
    """The report for a person: by group, what is wrong in full, what is right in one line.

    ``kit`` is what the user types for this program, ``options`` what names the same target.
    """
    say = partial(_filled, kit=kit, options=options)
    lines: list[str] = []
    for group in Group:
        of_group = [finding for finding in examination.findings if finding.check.group is group]
        if of_group:
            lines += [f"{group.value}:", *(line for finding in of_group for line in _lines(finding, say)), ""]
    return "\n".join([*lines, _verdict(examination)])


def _lines(finding: Diagnosis, say: Callable[[str], str]) -> list[str]:
    seen = finding.observation
    head = f"  {_MARKS[seen.status]:<{_MARK_WIDTH}} {finding.check.name}: {_printable(say(seen.found))}"
    lines = _wrap(head, _INDENT + "  ")
    for label, body in (("expected", seen.expected), ("why", seen.why)):
        if body:
            lines += _wrap(f"{_INDENT}  {label + ':':<10}{_printable(say(body))}", _INDENT + " " * 12)
    if seen.cure:
        # Never wrapped: it is there to be copied.
        lines.append(f"{_INDENT}  {'cure:':<10}{_printable(say(seen.cure))}")
    return lines


def _wrap(line: str, indent: str) -> list[str]:
    return textwrap.wrap(
        line, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _filled(body: str, kit: str, options: str) -> str:
    return body.replace(" {options}", f" {options}" if options else "").replace("{kit}", kit)


def _printable(body: str) -> str:
    """One line without control characters: the machine's own texts may hold anything."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in body)


def _verdict(examination: Examination) -> str:
    words = {Status.PROBLEM: "problem", Status.WARNING: "warning", Status.NOTE: "note"}
    counts = [
        f"{len(found)} {word}{'' if len(found) == 1 else 's'}"
        for status, word in words.items()
        if (found := examination.of(status))
    ]
    counts += [f"{len(examination.of(Status.OK))} ok"]
    if unseen := examination.of(Status.NOT_LOOKED_AT):
        counts.append(f"{len(unseen)} not looked at")
    tally = ", ".join(counts) + "."
    if not examination.failed:
        return f"no problem found: {tally}"
    names = dict.fromkeys(finding.check.name for finding in examination.of(Status.PROBLEM))
    return (
        f"PROBLEMS in {', '.join(names)}: {tally} Cure the first one first: later ones often follow from it."
    )


def as_json(examination: Examination, kit: str = "kit", options: str = "") -> dict[str, Any]:
    """The report for a program; the names of checks and statuses are stable."""
    say = partial(_filled, kit=kit, options=options)
    return {
        "failed": examination.failed,
        "counts": {status.value: len(examination.of(status)) for status in Status},
        "findings": [
            {
                "check": finding.check.name,
                "group": finding.check.group.name.lower(),
                "status": seen.status.value,
                "found": say(seen.found),
                "expected": say(seen.expected),
                "why": say(seen.why),
                "cure": say(seen.cure),
            }
            for finding in examination.findings
            for seen in [finding.observation]
        ],
    }
