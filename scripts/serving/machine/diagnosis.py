# SPDX-License-Identifier: Apache-2.0
"""The checks of the doctor, and what one of them says: a finding that takes the check's own name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum

from serving.findings import Finding, Severity

from .patient import Patient


def ok(found: str) -> Finding:
    return finding(Severity.OK, found)


def note(found: str, *, expected: str = "", why: str = "", cure: str = "") -> Finding:
    return finding(Severity.NOTE, found, expected, why, cure)


def warning(found: str, *, expected: str, why: str, cure: str) -> Finding:
    return finding(Severity.WARNING, found, expected, why, cure)


def problem(found: str, *, expected: str, why: str, cure: str) -> Finding:
    return finding(Severity.PROBLEM, found, expected, why, cure)


def not_looked_at(reason: str) -> Finding:
    return finding(Severity.NOT_LOOKED_AT, reason)


def finding(severity: Severity, what: str, expected: str = "", why: str = "", cure: str = "") -> Finding:
    """Not named yet: a check need not say its own name. A warning or problem has all four texts."""
    return Finding(severity, "", "", what, cure, expected=expected, why=why)


class Group(Enum):
    """The parts of the report, in the order in which a server needs them."""

    INSTALLATION = "the patch set and its packages"
    CARDS = "cards, driver and CANN"
    CONTAINER = "the container"
    ENVIRONMENT = "the environment"


@dataclass(frozen=True)
class Check:
    """One check. ``name`` is stable: it is what --ignore takes. ``look`` may raise; that is a finding too."""

    name: str
    summary: str
    group: Group
    look: Callable[[Patient], Iterable[Finding]]

    def diagnose(self, found: Finding) -> Diagnosis:
        """A finding of this check, under its name."""
        return Diagnosis(self, replace(found, name=self.name, subject=self.name))


@dataclass(frozen=True)
class Diagnosis:
    """A finding, and the check that made it."""

    check: Check
    finding: Finding
