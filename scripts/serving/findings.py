# SPDX-License-Identifier: Apache-2.0
"""What a check found: a severity, a place, one sentence, and what to do about it.

The one form of all that look at something before or after a start: the doctor, the model folder,
the start itself, a running server. It is shown here, and nowhere else.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from .typed import Typed

_SHOWN = 6
"""How many of a finding's details a person reads; a program gets all of them."""


class Severity(Enum):
    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"
    NOT_LOOKED_AT = "not looked at"


_MARKS = {Severity.PROBLEM: "PROBLEM", Severity.NOT_LOOKED_AT: "-"}
"""Where a person reads another word than a program."""

_WIDTH = 110
_INDENT = " " * 11


@dataclass(frozen=True)
class Finding:
    """One result of one check. ``name`` is stable, for programs; ``subject`` is where.

    ``cure`` is the whole line to type, or what else helps. In all of its texts ``{kit}`` stands for
    the kit as it was called, ``{options}`` for the options that name the same target, and ``{serve}``
    for the start of a server; only the rim knows them (`Typed`).
    """

    severity: Severity
    name: str
    subject: str
    what: str
    cure: str = ""
    details: tuple[str, ...] = ()
    expected: str = ""
    why: str = ""
    """What follows from it where it stays so."""


def ok(name: str, subject: str, what: str, details: Iterable[str] = ()) -> Finding:
    return Finding(Severity.OK, name, subject, what, details=tuple(details))


def note(name: str, subject: str, what: str, cure: str = "", details: Iterable[str] = ()) -> Finding:
    return Finding(Severity.NOTE, name, subject, what, cure, tuple(details))


def warning(name: str, subject: str, what: str, cure: str, details: Iterable[str] = ()) -> Finding:
    return Finding(Severity.WARNING, name, subject, what, cure, tuple(details))


def problem(name: str, subject: str, what: str, cure: str, details: Iterable[str] = ()) -> Finding:
    return Finding(Severity.PROBLEM, name, subject, what, cure, tuple(details))


def lines(findings: Iterable[Finding], typed: Typed) -> list[str]:
    """The findings as a person reads them, in the order given."""
    return [line for finding in findings for line in _lines_of(finding, typed)]


def _lines_of(finding: Finding, typed: Typed) -> list[str]:
    mark = _MARKS.get(finding.severity, finding.severity.value)
    found = _wrapped(f"  {mark:<8} {finding.subject}: {typed.fill(finding.what)}", f"{_INDENT}  ")
    found += [f"{_INDENT}  {_printable(detail)}" for detail in finding.details[:_SHOWN]]
    if len(finding.details) > _SHOWN:
        found.append(f"{_INDENT}  … and {len(finding.details) - _SHOWN} more (--json lists all)")
    for label, body in (("expected:", finding.expected), ("why:", finding.why)):
        if body:
            found += _wrapped(f"{_INDENT}  {label:<10}{typed.fill(body)}", _INDENT + " " * 12)
    if finding.cure:
        # Never wrapped: it is there to be copied.
        found.append(_printable(f"{_INDENT}  {'cure:':<10}{typed.fill(finding.cure)}"))
    return found


def _wrapped(line: str, indent: str) -> list[str]:
    return textwrap.wrap(
        _printable(line), _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


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


def as_json(finding: Finding, typed: Typed) -> dict[str, Any]:
    """The one form for programs; names and severities are stable."""
    return {
        "severity": finding.severity.value,
        "name": finding.name,
        "subject": finding.subject,
        "what": typed.fill(finding.what),
        "expected": typed.fill(finding.expected),
        "why": typed.fill(finding.why),
        "cure": typed.fill(finding.cure),
        "details": list(finding.details),
    }
