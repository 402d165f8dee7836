# SPDX-License-Identifier: Apache-2.0
"""The tensors of the tiny model: random, but such that every part of the model has a say.

Names and shapes are those that `target.vllm_half_checkpoint` knows. As published, all are
bfloat16 but the router's bias, which is float32.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod, sqrt

import torch

from target.vllm_half_checkpoint import Layout, Shape, Size, rename, shapes
from tiny.config import CLAMPED_LAYERS, TINY


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of a tensor's values, which are spread evenly."""

    mean: float
    deviation: float


# In the two last layers gate and up go past the limits, 7 and 16, on a fair share of the values;
# what comes out of them is then large, and the projection down makes it small again.
_CLAMPED = "|".join(map(str, CLAMPED_LAYERS))
_GAINS = (
    (rf"\.layers\.({_CLAMPED})\.moe\.(gate|up)_proj\.", 7.0),
    (rf"\.layers\.({_CLAMPED})\.moe\.down_proj\.", 0.03),
    (rf"\.layers\.({_CLAMPED})\.share_expert\.(gate|up)_proj\.", 14.0),
    (rf"\.layers\.({_CLAMPED})\.share_expert\.down_proj\.", 0.015),
    (r"\.(gate|up)_proj\.", 2.0),
    (r"\.g_proj\.", 1.5),
    (r"^lm_head\.", 1.5),
    (r"", 1.0),
)
_SPREADS = (
    (r"\.embed_tokens\.", Spread(0.0, 1.0)),
    (r"\.positional_embedding$", Spread(0.0, 0.5)),
    (r"\.ls_[12]\.gamma$", Spread(0.5, 0.1)),
    (r"\.ln_(pre|1|2)\.weight$", Spread(1.0, 0.1)),
    (r"norm\.weight$", Spread(0.0, 0.1)),  # zero-centred: the model adds 1
    (r"\.router_bias$", Spread(0.0, 0.3)),
    (r"bias$", Spread(0.0, 0.1)),
)


def tensors(seed: int, layout: Layout, size: Size = TINY) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and tensor, in the order of the published index: embedding, layers, head, tower."""
    for name, shape in shapes(size).items():
        dtype = torch.float32 if name.endswith("router_bias") else torch.bfloat16
        yield rename(name, layout), draw(f"{seed}/{name}", shape, spread(name, shape)).to(dtype)


def spread(name: str, shape: Shape) -> Spread:
    """Of a matrix such that it gives ``gain`` times the size of what it is given."""
    for pattern, found in _SPREADS:
        if re.search(pattern, name):
            return found
    gain = next(gain for pattern, gain in _GAINS if re.search(pattern, name))
    packed = re.search(r"\.moe\.(gate|up|down)_proj\.", name)
    return Spread(0.0, gain / sqrt(shape[2] if packed else prod(shape[1:])))


def draw(key: str, shape: Shape, spread: Spread) -> torch.Tensor:
    """float64; follows from the key alone, to the bit, on any machine."""
    content = bytearray(random.Random(key).randbytes(4 * prod(shape)))
    whole = torch.frombuffer(content, dtype=torch.int32).double()
    return (whole / 2**31 * sqrt(3) * spread.deviation + spread.mean).reshape(shape)
