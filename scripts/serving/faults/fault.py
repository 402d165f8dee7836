# SPDX-License-Identifier: Apache-2.0
"""What is known of one error text, and where it was seen."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """How bad it is, the worst first; documented for users in docs/identifiers.md."""

    FATAL = "fatal"
    """The server does not start, or stops."""
    DEGRADED = "degraded"
    """It runs, but slower than it could, or a request gets no right answer."""
    CONSEQUENCE = "consequence"
    """Something else went wrong before it."""
    HARMLESS = "harmless"
    """It looks worse than it is."""
    UNKNOWN = "unknown"
    """Of no row: a text that the kit does not know."""

    @property
    def is_cause(self) -> bool:
        return self in {Severity.FATAL, Severity.DEGRADED}

    @property
    def kind(self) -> str:
        """The word for a program that asks no more than whether it is the cause."""
        return "cause" if self.is_cause else self.value


SEVERITIES = frozenset(severity.value for severity in Severity) - {Severity.UNKNOWN.value}

ANYTHING = "*"
"""In ``explained_by``: whatever else is fatal."""


@dataclass(frozen=True)
class Fault:
    """One row. ``signs`` are pieces of text of which any one, in one line, is enough.

    With ``confirm`` that line must match it as well. In ``cure`` and ``decide``, ``{kit}`` stands for
    the kit as it was called, and ``{serve}`` for the start of the server.
    """

    name: str
    severity: Severity
    cause: str
    cure: str
    source: str
    """Where the text was seen, or what says so."""
    signs: tuple[str, ...] = ()
    confirm: re.Pattern[str] | None = None
    explained_by: frozenset[str] = frozenset()
    """Rows that, where they are found too, make this one a consequence."""
    could_be: tuple[str, ...] = ()
    """Where the line alone does not tell: what it can be, the likeliest first."""
    decide: str = ""
    """The one command or line of the log that tells these apart."""
    vague: bool = False
    """Says that something failed, not what: a number in the same line says more."""
    harmless_once: bool = False
    """Seen in one line alone, it means nothing."""
    general: bool = False
    """A text of any program: in a log it counts only where the log is one of a server of ours."""

    def follows_from(self, other: Fault) -> bool:
        """Is this one a consequence where the other is there too?"""
        if other.name in self.explained_by:
            return True
        is_cause = other.severity is Severity.FATAL and ANYTHING not in other.explained_by
        return ANYTHING in self.explained_by and is_cause

    def sign_in(self, line: str) -> str:
        """The sign that the line shows, "" if none."""
        found = next((sign for sign in self.signs if sign in line), "")
        return found if found and (self.confirm is None or self.confirm.search(line)) else ""


@dataclass(frozen=True)
class Sighting:
    """Where a text was seen first, how often by now, and what stood there."""

    line: int
    text: str
    count: int = 1


@dataclass(frozen=True)
class Explanation:
    """A row that was found, and where."""

    fault: Fault
    seen: Sighting
    processes: tuple[tuple[str, Sighting], ...] = ()
    """Where the cause is not known: each process, and its first error."""

    @property
    def known(self) -> bool:
        return self.fault.severity is not Severity.UNKNOWN
