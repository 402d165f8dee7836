# SPDX-License-Identifier: Apache-2.0
"""The patched vLLM served in other ways than the plain one, with the plain folder: one server for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from math import inf
from pathlib import Path

import pytest

from e2e.cases import QUESTIONS, TEXTS, Serve
from e2e.chat import refusal, say, say_with_figures
from e2e.server import TWO_RANKS, Server, Way
from tiny.comparison import TOLERANCE, compare
from tiny.conversations import prompt_ids
from tiny.pictures import Views
from tiny.reference import Reference

pytest_plugins = ["e2e.server_fixtures"]


@dataclass(frozen=True)
class Case:
    """A way to serve, and how far its log-probabilities may be from the reference's, which is in float32.

    A reference without the clamp, the gate or the picture is 0.5 or more from the right one in the mean.
    """

    way: Way
    worst: float = TOLERANCE
    mean: float = TOLERANCE
    sees: bool = True


CASES = {
    "float16": Case(Way(("--dtype=float16",)), worst=inf, mean=0.02),
    "bfloat16": Case(Way(("--dtype=bfloat16",)), worst=inf, mean=0.2),
    "compiled": Case(Way(("--no-enforce-eager",), compiles=True)),
    "text alone": Case(Way(("--language-model-only",)), sees=False),
    "two stages": Case(Way(("--pipeline-parallel-size=2",), TWO_RANKS)),
    "two ranks": Case(
        Way(
            (
                "--tensor-parallel-size=2",
                "--enable-expert-parallel",
                "--mm-encoder-tp-mode=data",
                "--skip-mm-profiling",  # else gloo refuses a view that profiling made
            ),
            TWO_RANKS,
        )
    ),
}


@dataclass(frozen=True)
class Served:
    name: str
    case: Case
    server: Server


@pytest.fixture(scope="module", params=CASES)
def served(
    serve: Serve, patched_root: Path, flat_model: Path, request: pytest.FixtureRequest
) -> Iterator[Served]:
    case = CASES[request.param]
    way = Way((*case.way.options, "--max-logprobs=-1"), case.way.settings, case.way.compiles)
    with serve(patched_root, flat_model, way) as server:
        yield Served(request.param, case, server)


@pytest.mark.parametrize("name", QUESTIONS)
def test_it_says_what_the_reference_says_or_refuses_cleanly(
    served: Served, views: dict[str, list[Views]], flat_model: Path, name: str, note: Callable[[str], None]
) -> None:
    if views[name] and not served.case.sees:
        assert refusal(served.server, QUESTIONS[name].messages).status_code == HTTPStatus.BAD_REQUEST
        return
    reply = say_with_figures(served.server, QUESTIONS[name].messages)

    found = compare(reply, Reference(flat_model), views[name])

    note(f"server, {served.name}, {name}: {found}, by {found.mean:.1e} in the mean")
    assert reply.prompt == prompt_ids(flat_model, TEXTS[name], views[name])
    assert found.worst < served.case.worst
    assert found.mean < served.case.mean


def test_the_model_is_compiled_where_that_was_asked_for(served: Served) -> None:
    """Else the case would prove nothing."""
    log = served.server.log.read_text("utf-8")
    assert ("saved AOT compiled function" in log) == served.case.way.compiles


def test_it_is_healthy_afterwards(served: Served, note: Callable[[str], None]) -> None:
    note(f"server, {served.name}: {served.server.figures()}")
    assert say(served.server, QUESTIONS["text"].messages).usage.completion_tokens > 0
    assert served.server.is_healthy()
