# SPDX-License-Identifier: Apache-2.0
"""A tiny Step-3.7 whose next word follows from the last one, with draft layers that know it or do not.

The embedding is so large that each layer's part in a hidden state is small, though every layer works as
ever; and the head answers a word with the one of the next id. A draft layer is given the embedding in
the same size. Where its head is that of the model, it foresees the answer at every place; where its
head names the id after that, it never does. So how many drafts are accepted is known beforehand, to
the token.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

import torch

from tiny.checkpoint import Named, write_checkpoint
from tiny.config import TINY
from tiny.tokenizer import FIRST, FIRST_ADDED

DRAFT_LAYERS = range(TINY.layers, TINY.layers + TINY.mtp_layers)
SIZE = 16.0
"""Of the embedding against a layer's output."""

SHARPNESS = 0.25
WORDS = torch.arange(len(FIRST), FIRST_ADDED)
"""Ids that may be said. What comes after the last one is the first."""


def write_predictable(folder: Path, agreeing: Collection[int]) -> None:
    """The folder of such a model; the draft layers ``agreeing`` (of `DRAFT_LAYERS`) foresee its answers."""

    def change(named: Named) -> Iterator[tuple[str, torch.Tensor]]:
        embedding = torch.empty(0)
        for name, tensor in named:
            if name == "model.embed_tokens.weight":
                embedding = tensor.double()
                yield name, (SIZE * embedding).to(tensor.dtype)
            elif name == "lm_head.weight":
                yield name, head(embedding, 1).to(tensor.dtype)
            elif found := re.search(r"\.(\d+)\.transformer\.shared_head\.output\.", name):
                distance = 1 if int(found[1]) in agreeing else 2
                yield name, head(embedding, distance).to(tensor.dtype)
            elif name.endswith(".eh_proj.weight"):
                yield name, large_embedding(tensor)
            else:
                yield name, tensor

    write_checkpoint(folder, change=change)


def head(embedding: torch.Tensor, distance: int) -> torch.Tensor:
    """``[vocabulary, H]``: each of `WORDS` is answered with the one ``distance`` further on."""
    rows = torch.zeros_like(embedding)
    rows[WORDS.roll(-distance)] = SHARPNESS * embedding[WORDS]
    return rows


def large_embedding(projection: torch.Tensor) -> torch.Tensor:
    """``[H, 2 H]``: the token as it is, `SIZE` times; of the hidden state what it was."""
    changed = projection.clone()
    hidden = len(changed)
    changed[:, :hidden] = SIZE * torch.eye(hidden)
    return changed


def after(token: int, count: int) -> list[int]:
    """What the model says after one of `WORDS`."""
    return [len(FIRST) + (token - len(FIRST) + step) % len(WORDS) for step in range(1, count + 1)]
