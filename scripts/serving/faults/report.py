# SPDX-License-Identifier: Apache-2.0
"""The explanations for a person and for a program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from serving.typed import Typed

from . import codes
from .fault import Explanation, Fault, Severity

_TITLES = {
    Severity.CONSEQUENCE: "which follows from something earlier:",
    Severity.HARMLESS: "which looks worse than it is:",
}


def text(explanations: Iterable[Explanation], kit: str = "kit") -> str:
    """Causes, then what follows from them, then what is harmless."""
    lines: list[str] = []
    title = ""
    for explanation in explanations:
        if title != (title := _TITLES.get(explanation.fault.severity, title)):
            lines += [title, ""]
        lines += [*_lines(explanation, kit), ""]
    return "\n".join(lines).rstrip()


def _lines(explanation: Explanation, kit: str) -> list[str]:
    fault, seen = explanation.fault, explanation.seen
    times = f", {seen.count} times" if seen.count > 1 else ""
    where = f" (line {seen.line}{times})" if seen.line else ""
    lines = [f"{fault.name}{where}"]
    if seen.text:
        lines.append(f"  seen:  {seen.text}")
    lines.append(f"  cause: {fault.cause}")
    lines += [f"         {number}. {what}" for number, what in enumerate(fault.could_be, 1)]
    if fault.decide:
        lines.append(f"  tell:  {_typed(fault.decide, kit)}")
    lines.append(f"  cure:  {_typed(fault.cure, kit)}")
    lines += [f"  code:  {meaning}" for meaning in _codes(explanation)]
    lines += [f"  known: {fault.source}"] if fault.source else []
    if explanation.processes:
        lines.append("  first error of each process:")
    return lines + [f"    line {error.line}: {error.text}" for _, error in explanation.processes]


def as_json(explanations: Sequence[Explanation], kit: str = "kit") -> dict[str, Any]:
    """The same for a program, in the same order."""
    return {
        "known": any(explanation.known for explanation in explanations),
        "explanations": [_object(explanation, kit) for explanation in explanations],
    }


def _object(explanation: Explanation, kit: str) -> dict[str, Any]:
    fault, seen = explanation.fault, explanation.seen
    return {
        "name": fault.name,
        "kind": fault.severity.kind,
        "severity": fault.severity.value,
        "line": seen.line,
        "count": seen.count,
        "seen": seen.text,
        "cause": fault.cause,
        "codes": _codes(explanation),
        "could_be": list(fault.could_be),
        "decide": _typed(fault.decide, kit),
        "cure": _typed(fault.cure, kit),
        "source": fault.source,
        "first_errors": [
            {"process": process, "line": error.line, "seen": error.text}
            for process, error in explanation.processes
        ],
    }


def _codes(explanation: Explanation) -> list[str]:
    """What the numbers of the line mean, where the row is not that of a number itself."""
    found = codes.in_line(explanation.seen.text)
    return [fault.cause for name, (fault, _) in found.items() if name != explanation.fault.name]


def table(rows: Iterable[Fault]) -> str:
    """All rows in Markdown: name, severity, cause."""
    lines = [
        f"| `{row.name}` | {row.severity.value} | {row.cause.replace('|', chr(92) + '|')} |" for row in rows
    ]
    return "\n".join(["| name | severity | what it means |", "|---|---|---|", *lines])


def table_json(rows: Iterable[Fault]) -> list[dict[str, str]]:
    return [{"name": row.name, "severity": row.severity.value, "cause": row.cause} for row in rows]


def _typed(command: str, kit: str) -> str:
    return Typed(kit).fill(command)
