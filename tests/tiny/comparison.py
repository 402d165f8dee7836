# SPDX-License-Identifier: Apache-2.0
"""How far an engine's reply is from what the reference says of the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tiny.engine import Reply
from tiny.pictures import Views
from tiny.reference import Reference

TOLERANCE = 1e-4
"""Of a log-probability in float32; a fifth of it or less was seen."""

FAR = 100 * TOLERANCE
"""A feature that is left out must show by more than this."""


@dataclass(frozen=True)
class Compared:
    """The largest differences of log-probabilities: of the prompt's tokens, and of all ids after it.

    ``mean`` is that of all of them: in half precision a token that just misses an expert has a far
    larger difference than the others.
    """

    prompt: float
    answer: float
    mean: float
    same_tokens: bool

    @property
    def worst(self) -> float:
        return max(self.prompt, self.answer)

    def __str__(self) -> str:
        return f"log-probabilities differ by {self.worst:.1e} at the most"


def compare(reply: Reply, reference: Reference, views: Sequence[Views] = ()) -> Compared:
    """Of a greedy reply; the reference is asked once, about prompt and answer together."""
    expected = reference.log_probabilities([*reply.prompt, *reply.answer], views)
    asked = len(reply.prompt)
    of_prompt = expected[: asked - 1].gather(-1, torch.tensor(reply.prompt[1:])[:, None])[:, 0]
    of_answer = expected[asked - 1 : -1]
    prompt = size(torch.tensor(reply.prompt_log_probabilities) - of_prompt)
    answer = size(torch.tensor(reply.log_probabilities) - of_answer)
    return Compared(
        prompt=float(prompt.max()),
        answer=float(answer.max()),
        mean=float(torch.cat([prompt, answer.flatten()]).mean()),
        same_tokens=of_answer.argmax(-1).tolist() == reply.answer,
    )


def apart(one: Reply, other: Reply) -> float:
    """The largest difference of log-probabilities between two replies with the same tokens."""
    pairs = (
        (one.prompt_log_probabilities, other.prompt_log_probabilities),
        (one.log_probabilities, other.log_probabilities),
    )
    return max(float(size(torch.tensor(ours) - torch.tensor(theirs)).max()) for ours, theirs in pairs)


def size(difference: torch.Tensor) -> torch.Tensor:
    """Infinite where a number is missing."""
    return difference.abs().nan_to_num(torch.inf, torch.inf)
