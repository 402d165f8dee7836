# SPDX-License-Identifier: Apache-2.0
"""How many drafts are accepted, by vLLM's own counters, where it is known beforehand to the token.

The draft layers of `tiny.predictable` are right at every place, or at none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from e2e.mtp_cases import TEXTS, RunSession, greedy
from e2e.mtp_fixtures import run
from tiny.conversations import ask
from tiny.draft_engine import GREEDY, Asked, Session, Task
from tiny.draft_process import DRAFTING
from tiny.predictable import DRAFT_LAYERS, after, write_predictable

__all__ = ["run"]

FIRST, *LATER = DRAFT_LAYERS
NAMES = ("text", "english", "picture")
ANSWER = 49
"""The prompt's step says one token; then 12 steps of 4, 24 of 2, or 48 of 1."""

ACCEPTED = {
    "all": (DRAFT_LAYERS, 12, [12, 12, 12]),
    "the first alone": ([FIRST], 24, [24, 0, 0]),
    "all but the first": (LATER, 48, [0, 0, 0]),
}
LENGTH = 160
TO_THE_END = {
    name: Asked(ask(TEXTS[name]), GREEDY | {"max_tokens": tokens})
    for name, tokens in {"text": 400, "english": 400, "long": 11}.items()
}


@pytest.mark.parametrize("agreeing", ACCEPTED)
def test_as_many_drafts_are_accepted_as_layers_agree(
    run: RunSession, drafting_root: Path, tmp_path: Path, note: Callable[[str], None], agreeing: str
) -> None:
    layers, steps, accepted = ACCEPTED[agreeing]

    done = session(run, drafting_root, tmp_path, layers, {"q": greedy(ANSWER, *NAMES)}).done["q"]

    found = done.counted
    note(f"draft layers that agree, {agreeing}: accepted {found['accepted']} of {found['drafts']} each")
    for [said] in done.answers.values():
        assert said.tokens == [said.tokens[0], *after(said.tokens[0], ANSWER - 1)]
    assert done.counted["drafts"] == [len(NAMES) * steps]
    assert done.counted["accepted"] == [len(NAMES) * each for each in accepted]


def test_up_to_the_greatest_length_every_window_is_drafted_over(
    run: RunSession, drafting_root: Path, tmp_path: Path
) -> None:
    """Else, where one request ends there, the drafts of all the others in those steps would be lost."""
    tasks = {
        "right": Task(TO_THE_END),
        "vLLM's rule": Task(TO_THE_END, mutant="no_draft_near_the_greatest_length"),
    }
    options = {"max_model_len": LENGTH, "max_num_batched_tokens": 48}

    done = session(run, drafting_root, tmp_path, DRAFT_LAYERS, tasks, **options).done

    right = done["right"]
    for name in ("text", "english"):
        assert len(right.prompts[name]) + len(right.answers[name][0].tokens) == LENGTH
    assert right.counted["drafts"] == [sum(steps(len(said.tokens)) for [said] in right.answers.values())]
    assert right.counted["accepted"][0] == right.counted["drafts"][0]
    assert done["vLLM's rule"].counted != right.counted


def steps(answer: int) -> int:
    """In which it is said, after the prompt's own, four tokens at a time."""
    return -(-(answer - 1) // 4)


def session(
    run: RunSession,
    root: Path,
    scratch: Path,
    agreeing: Collection[int],
    tasks: dict[str, Task],
    **options: int,
) -> Session:
    model = scratch / "model"
    write_predictable(model, agreeing)
    return run(root, model, tasks, **options, **DRAFTING)
