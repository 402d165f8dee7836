# SPDX-License-Identifier: Apache-2.0
"""What is asked with drafting and without, and how the two are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tiny.comparison import TOLERANCE
from tiny.conversations import CHINESE, LONG_CHINESE, ask, picture
from tiny.draft_engine import GREEDY, Asked, Done, Session, Task
from tiny.drafting import replay
from tiny.pictures import Views, look_at
from tiny.reference import Reference

RunSession = Callable[..., Session]
"""A root, a model folder, tasks, and the options of vLLM's ``LLM``."""

PICTURES = {
    "text": [],
    "english": [],
    "long": [],
    "short": [],
    "picture": [picture(224, 224)],
    "crops": [picture(120, 200)],
    "two pictures": [picture(100, 100), picture(60, 80)],
}
TEXTS = {
    "text": CHINESE,
    "english": "hello world",
    "long": LONG_CHINESE,
    "short": "运维",
    "picture": "这张图片里有什么？",
    "crops": "有什么？",
    "two pictures": "这些图片里有什么？",
}
LENGTHS = {"short": 2}
VIEWS: dict[str, list[Views]] = {name: [look_at(each) for each in drawn] for name, drawn in PICTURES.items()}


def greedy(tokens: int, *names: str, **sampling: Any) -> Task:
    """The questions of these names, all if none is given, asked at once."""
    return Task(
        {
            name: Asked(
                ask(TEXTS[name], *PICTURES[name]),
                GREEDY | {"max_tokens": LENGTHS.get(name, tokens)} | sampling,
            )
            for name in names or TEXTS
        }
    )


def tokens(done: Done) -> dict[str, list[list[int]]]:
    return {name: [said.tokens for said in answers] for name, answers in done.answers.items()}


def distance(one: Done, other: Done) -> float:
    """The largest difference of two log-probabilities of the same token."""
    pairs = (
        pair
        for name, answers in one.answers.items()
        for said, same in zip(answers, other.answers[name], strict=True)
        for pair in zip(said.log_probabilities, same.log_probabilities, strict=True)
    )
    return max(abs(left - right) for left, right in pairs)


def says_the_same(drafting: Done, plain: Done) -> bool:
    """Token by token; the log-probabilities too, but for rounding."""
    return tokens(drafting) == tokens(plain) and distance(drafting, plain) < TOLERANCE


def wrong_drafts(done: Done, reference: Reference) -> int:
    """How many drafts are not those of the plain account. Every one was looked at."""
    wrong = 0
    for name, proposals in done.proposals.items():
        expected = replay(reference, proposals, VIEWS[name])
        for made, account in zip(proposals, expected, strict=True):
            wrong += sum(draft != right for draft, right in zip(made.drafts, account.drafts, strict=True))
    return wrong
