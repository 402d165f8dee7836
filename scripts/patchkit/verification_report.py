# SPDX-License-Identifier: Apache-2.0
"""What ``verify`` tells: a person its checks and a verdict, a program the same."""

from __future__ import annotations

from typing import Any

from .manifest import BASE
from .report import status_json, summary
from .state import SetState
from .verify import Check, Level, Result, Verification

_LEVEL_TITLES = {
    Level.BYTES: "the bytes on the disk",
    Level.NAMES: "compiled, every name looked up, nothing run",
    Level.IMPORTS: "imported in a fresh interpreter of the target",
}
_MARKS = {Result.PASSED: "ok", Result.FAILED: "FAILED", Result.NOT_RUN: "not run"}


def checks(verification: Verification) -> str:
    """All checks, grouped by what kind of proof they are."""
    lines: list[str] = []
    for level in Level:
        of_level = [check for check in verification.checks if check.level is level]
        if of_level:
            lines += ["", f"{_LEVEL_TITLES[level]}:"]
            lines += [f"  {_MARKS[c.result]:<8} {_subject(c):<41} {c.detail}" for c in of_level]
    return "\n".join(lines[1:])


def verdict(verification: Verification) -> str:
    """The last line of ``verify``: what was proved, and what was not looked at."""
    found = verification.found
    if found.state is SetState.NATIVE:
        return summary(found)
    count = {result: sum(c.result is result for c in verification.checks) for result in Result}
    not_run = f", {count[Result.NOT_RUN]} not run" if count[Result.NOT_RUN] else ""
    if verification.passed:
        return f"verified: {count[Result.PASSED]} checks passed{not_run}."
    failed = "1 check" if count[Result.FAILED] == 1 else f"{count[Result.FAILED]} checks"
    return f"NOT verified: {failed} failed{not_run}. {summary(found, verification.sets)}"


def _subject(check: Check) -> str:
    """What a check is about, with the opt-in set that asked for it."""
    return check.subject if check.set == BASE else f"{check.subject} [{check.set}]"


def verification_json(verification: Verification) -> dict[str, Any]:
    def row(check: Check) -> dict[str, str]:
        of_set = {} if check.set == BASE else {"set": check.set}
        return of_set | {
            "level": check.level.value,
            "subject": check.subject,
            "result": check.result.value,
            "detail": check.detail,
        }

    return status_json(verification.found) | {
        "passed": verification.passed,
        "checks": [row(check) for check in verification.checks],
    }
