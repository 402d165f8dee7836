# SPDX-License-Identifier: Apache-2.0
"""What a check found: a severity, a place, one sentence, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

_SHOWN = 6
"""How many of a finding's details a person reads; a program gets all of them."""


class Severity(Enum):
    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """One result of one check. ``name`` is stable, for programs; ``subject`` is where."""

    severity: Severity
    name: str
    subject: str
    what: str
    cure: str = ""
    details: tuple[str, ...] = ()


def ok(name: str, subject: str, what: str, details: Iterable[str] = ()) -> Finding:
    return Finding(Severity.OK, name, subject, what, details=tuple(details))


def note(name: str, subject: str, what: str, cure: str = "", details: Iterable[str] = ()) -> Finding:
    return Finding(Severity.NOTE, name, subject, what, cure, tuple(details))


def warning(name: str, subject: str, what: str, cure: str, details: Iterable[str] = ()) -> Finding:
    return Finding(Severity.WARNING, name, subject, what, cure, tuple(details))


def problem(name: str, subject: str, what: str, cure: str, details: Iterable[str] = ()) -> Finding:
    return Finding(Severity.PROBLEM, name, subject, what, cure, tuple(details))


def lines(findings: Iterable[Finding]) -> list[str]:
    """The findings as a person reads them, in the order given."""
    return [_printable(line) for finding in findings for line in _lines_of(finding)]


def _lines_of(finding: Finding) -> list[str]:
    mark = finding.severity.value
    shown = mark.upper() if finding.severity is Severity.PROBLEM else mark
    found = [f"  {shown:<8} {finding.subject}: {finding.what}"]
    found += [f"  {'':<8}   {detail}" for detail in finding.details[:_SHOWN]]
    if len(finding.details) > _SHOWN:
        found.append(f"  {'':<8}   … and {len(finding.details) - _SHOWN} more (--json lists all)")
    if finding.cure:
        found.append(f"  {'':<8} cure: {finding.cure}")
    return found


def _printable(line: str) -> str:
    """Names out of a file may hold line ends and escape sequences; a terminal gets neither."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def counted(count: int, noun: str) -> str:
    """ "1 shard", "24 shards" """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def tally(findings: Iterable[Finding]) -> str:
    """ "2 problems, 1 warning", or "no problem" """
    severities = [finding.severity for finding in findings]
    counts = [
        counted(count, word)
        for severity, word in ((Severity.PROBLEM, "problem"), (Severity.WARNING, "warning"))
        if (count := severities.count(severity))
    ]
    return ", ".join(counts) or "no problem"


def as_json(finding: Finding) -> dict[str, Any]:
    return {
        "severity": finding.severity.value,
        "name": finding.name,
        "subject": finding.subject,
        "what": finding.what,
        "cure": finding.cure,
        "details": list(finding.details),
    }
