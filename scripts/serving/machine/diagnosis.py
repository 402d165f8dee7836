# SPDX-License-Identifier: Apache-2.0
"""What a check of the doctor says: what is there, what should be, why it matters, what cures it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from .patient import Patient


class Status(Enum):
    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"
    NOT_LOOKED_AT = "not looked at"


@dataclass(frozen=True)
class Observation:
    """One thing seen. A warning or problem has all four texts, and its cure is one line to type.

    In them, ``{kit}`` stands for the kit as it was called, and ``{options}`` for the
    options that name the same target; only the rim knows them.
    """

    status: Status
    found: str
    expected: str = ""
    why: str = ""
    cure: str = ""


def ok(found: str) -> Observation:
    return Observation(Status.OK, found)


def note(found: str, *, expected: str = "", why: str = "", cure: str = "") -> Observation:
    return Observation(Status.NOTE, found, expected, why, cure)


def warning(found: str, *, expected: str, why: str, cure: str) -> Observation:
    return Observation(Status.WARNING, found, expected, why, cure)


def problem(found: str, *, expected: str, why: str, cure: str) -> Observation:
    return Observation(Status.PROBLEM, found, expected, why, cure)


def not_looked_at(reason: str) -> Observation:
    return Observation(Status.NOT_LOOKED_AT, reason)


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
    look: Callable[[Patient], Iterable[Observation]]


@dataclass(frozen=True)
class Diagnosis:
    """An observation, and the check that made it."""

    check: Check
    observation: Observation
