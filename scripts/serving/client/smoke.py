# SPDX-License-Identifier: Apache-2.0
"""``kit smoke``: asks a running server what its users would, and tells the faults of its answers apart.

A healthy server that answers HTTP 200 may still have lost the prompt on the way (the wrong
tokenizer class) or the numbers (an overflow), so every answer is looked at, not its status alone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from serving import bounded, findings
from serving.findings import Finding, Severity, ok, problem, tally
from serving.typed import PLAIN, Typed

from . import exchange, questions
from .exchange import NoReply, Server
from .questions import Options, Question, Served, Talk

_POLL_S = 2.0


@dataclass(frozen=True)
class Report:
    url: str
    model: str
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def failed(self) -> bool:
        return any(finding.severity is Severity.PROBLEM for finding in self.findings)


def text(report: Report, typed: Typed = PLAIN) -> str:
    """The report for a person."""
    served = f", model {report.model}" if report.model else ""
    found = report.findings
    verdict = f"{'FAILED' if report.failed else 'passed'}: {tally(found)}; {report.seconds:.1f} s."
    return "\n".join([f"smoke of {report.url}{served}", *findings.lines(found, typed), verdict])


def as_json(report: Report, typed: Typed = PLAIN) -> dict[str, Any]:
    """The same for a program."""
    return {
        "failed": report.failed,
        "url": report.url,
        "model": report.model,
        "seconds": round(report.seconds, 3),
        "findings": [findings.as_json(finding, typed) for finding in report.findings],
    }


def run(url: str, options: Options) -> Report:
    """Ask everything, one after the other.

    Raises:
        Refused: the URL or the key cannot be used.
    """
    server = exchange.server(url, options.key, options.timeout)
    started = time.monotonic()
    served, found = _reach(server, options)
    if served:
        talk = Talk(server, served, options)
        for name, ask in questions.of(talk):
            found += _outcome(name, ask, talk)
    name = served.name if served else options.model
    return Report(str(server), name, tuple(found), time.monotonic() - started)


def _reach(server: Server, options: Options) -> tuple[Served | None, list[Finding]]:
    """The way to the model; without it nothing else need be asked."""
    try:
        _wait_until_healthy(server, options.wait)
    except NoReply as error:
        return None, [_failure("health", error)]
    healthy = ok("health", "health", "answers")
    try:
        served = _served(server)
    except NoReply as error:
        return None, [healthy, _failure("model", error)]
    names = ", ".join(model.name for model in served)
    chosen = next((model for model in served if options.model in {"", model.name}), None)
    if chosen is None:
        what = f"{options.model!r} is not served" if served else "no model is served"
        cure = f"--model {served[0].name}" if served else "look at the server's log"
        return None, [
            healthy,
            problem("model", "model", f"{what}; the server has: {names or 'none'}", cure),
        ]
    return chosen, [healthy, ok("model", "model", f"served as {names}")]


def _wait_until_healthy(server: Server, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            server.get("/health")
        except NoReply:
            if time.monotonic() >= deadline:
                raise
            time.sleep(min(_POLL_S, max(deadline - time.monotonic(), 0)))
        else:
            return


def _served(server: Server) -> list[Served]:
    body = server.get("/v1/models")
    try:
        models = bounded.json_object(body).get("data")
    except bounded.Unreadable as error:
        raise NoReply(f"{server}/v1/models {error}: {exchange.excerpt(body)}") from None
    if not isinstance(models, list):
        raise NoReply(f"{server}/v1/models lists no models: {exchange.excerpt(body)}")
    return [
        Served(name, root if isinstance(root := model.get("root"), str) else "")
        for model in models
        if isinstance(model, dict) and isinstance(name := model.get("id"), str)
    ]


def _outcome(name: str, ask: Question, talk: Talk) -> list[Finding]:
    """What a question found; a broken exchange is its finding."""
    try:
        return list(ask(talk))
    except NoReply as error:
        return [_failure(name, error)]


def _failure(name: str, error: NoReply) -> Finding:
    return problem(name, name, error.what, error.cure)
