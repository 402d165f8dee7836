# SPDX-License-Identifier: Apache-2.0
"""What drafting leaves behind, and a plain account of what it should have been.

A `Proposal` is what was handed to `Step3p7Drafter.draft` for one request in one step, and what came
back. `replay` goes through those of one request in their order and says what each should have been: in
float32, with no cache, no blocks and no batch, from the checkpoint's own files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tiny.pictures import Views
from tiny.reference import Reference


@dataclass(frozen=True)
class Proposal:
    """Of one request in one step.

    ``tokens``: the window up to the last accepted token, which begins at position ``start``.
    ``newest``: what the model said after it; within a prompt that goes on, its next token.
    """

    start: int
    tokens: list[int]
    newest: int
    drafts: list[int]

    @property
    def end(self) -> int:
        """The position of ``newest``."""
        return self.start + len(self.tokens)


@dataclass(frozen=True)
class Expected:
    """``margin``: between the logits of the best and the second of each draft."""

    drafts: list[int]
    margins: list[float]


class Remembering(Reference):
    """What the model makes of the same prompt and answer is worked out once."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._known: dict[tuple[int, ...], Tensor] = {}

    def last_layer(self, tokens: Sequence[int], pictures: Sequence[Views] = ()) -> Tensor:
        key = tuple(tokens)
        if key not in self._known:
            self._known[key] = super().last_layer(tokens, pictures)
        return self._known[key]


def replay(
    reference: Reference, proposals: Sequence[Proposal], views: Sequence[Views] = ()
) -> list[Expected]:
    """What the draft layers should have proposed, given the windows that they saw.

    What a layer holds of a position is what it was last given there: a later window does not repair
    what an earlier one wrote on the strength of a draft that was then rejected.
    """
    text = reference.config["text_config"]
    layers = [text["num_hidden_layers"] + step for step in range(len(proposals[0].drafts))]
    said = tokens_said(proposals)
    known = reference.last_layer(said, views)
    inputs = {layer: torch.zeros_like(known) for layer in layers}
    found = []
    for proposal in proposals:
        window = slice(proposal.start, proposal.end)
        ids, newest, hidden = torch.tensor(proposal.tokens), proposal.newest, known[window]
        drafts, margins = [], []
        for layer in layers:
            ids = torch.cat([ids[1:], torch.tensor([newest])])
            inputs[layer][window] = reference.enter_draft_layer(layer, reference.embed(ids), hidden)
            hidden = reference.layer(layer, inputs[layer][: proposal.end])[proposal.start :]
            newest, margin = best(reference.draft_logits(layer, hidden[-1]))
            drafts.append(newest)
            margins.append(margin)
        found.append(Expected(drafts, margins))
    return found


def tokens_said(proposals: Sequence[Proposal]) -> list[int]:
    """From the first token to the newest. Each window begins where the one before it ended.

    Raises:
        ValueError: a step without drafting has left a hole.
    """
    said: list[int] = []
    for proposal in proposals:
        if proposal.start != len(said):
            raise ValueError(f"a window begins at {proposal.start}, after {len(said)} tokens")
        said += proposal.tokens
    return [*said, proposals[-1].newest]


def best(logits: Tensor) -> tuple[int, float]:
    first, second = logits.topk(2).values.tolist()
    return int(logits.argmax()), first - second
