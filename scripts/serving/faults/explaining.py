# SPDX-License-Identifier: Apache-2.0
"""From a text or a log to what it is about: causes before what follows from them, and honest otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from . import log, table
from .fault import Explanation, Fault, Severity, Sighting
from .sightings import Sightings

_COLLECT = (
    "collect: the log from its first ERROR on, and the first ERROR of each rank; {kit} status --json; "
    "{kit} doctor --json; the vllm serve command; CANN's own log, ~/ascend/log/debug/plog, or below "
    "$ASCEND_PROCESS_LOG_PATH"
)
UNKNOWN = Fault(
    "unknown",
    Severity.UNKNOWN,
    "This text is not known to this kit, and it does not guess.",
    _COLLECT,
    "",
)
NOTHING = replace(UNKNOWN, name="nothing-found", cause="Nothing in this text looks like an error.")

_ORDER = (Severity.FATAL, Severity.UNKNOWN, Severity.DEGRADED, Severity.CONSEQUENCE, Severity.HARMLESS)


def explain(text: str) -> tuple[Explanation, ...]:
    """What a piece of text is about: causes first, each by its first line. Never empty.

    A text that a terminal has wrapped is tried as one line as well.
    """
    found = _explain(_lines(text), is_ours=True)
    if any(explanation.known for explanation in found):
        return found
    for joined in ("".join(text.splitlines()), " ".join(text.split())):
        rejoined = _explain(_lines(joined), is_ours=True)
        if any(explanation.known for explanation in rejoined):
            return rejoined
    return found


def explain_log(path: Path) -> tuple[Explanation, ...]:
    """The same for a log of any size, in bounded memory; a pipe will do (``/dev/stdin``).

    Raises:
        Refused: it cannot be read, or is no text.
    """
    return _explain(log.lines(path), is_ours=False)


def _lines(text: str) -> Iterable[tuple[int, bytes]]:
    return enumerate(log.without_colours(text.encode("utf-8", "replace")).split(b"\n"), 1)


def _explain(lines: Iterable[tuple[int, bytes]], is_ours: bool) -> tuple[Explanation, ...]:
    sightings = Sightings(table.faults(), is_ours)
    for number, line in lines:
        sightings.look(number, line)
    seen = dict(sightings.counting())
    found = [Explanation(_ranked(fault, sighting, seen), sighting) for fault, sighting in seen.items()]
    found += _unknown(sightings, {explanation.fault.severity for explanation in found})
    return tuple(sorted(found, key=lambda e: (_ORDER.index(e.fault.severity), e.seen.line)))


def _ranked(fault: Fault, sighting: Sighting, seen: Iterable[Fault]) -> Fault:
    """The row, as a consequence where one that explains it was found too."""
    if fault.harmless_once and sighting.count == 1:
        return replace(fault, severity=Severity.HARMLESS)
    if any(map(fault.follows_from, seen)):
        return replace(fault, severity=Severity.CONSEQUENCE)
    return fault


def _unknown(sightings: Sightings, found: set[Severity]) -> list[Explanation]:
    """An honest "not known", unless what stopped the server is known."""
    stray = sightings.stray
    if Severity.FATAL in found:
        return []
    if stray and (sightings.stray_is_exception or found <= {Severity.HARMLESS}):
        return [Explanation(UNKNOWN, stray, tuple(sightings.processes.items()))]
    if found:
        return []
    return [Explanation(NOTHING, Sighting(0, "", 0))]
