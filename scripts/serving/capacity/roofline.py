# SPDX-License-Identifier: Apache-2.0
"""The bandwidth roofline of decode: no step can take less time than reading its bytes once."""

from __future__ import annotations

from dataclasses import dataclass

from serving.model.model_config import LayerKind, TextConfig

from .card_weights import CardWeights
from .kv_cache import Layout


@dataclass(frozen=True)
class Decode:
    """One step of ``batch`` requests with ``context`` tokens each."""

    batch: int
    context: int
    bytes_read: int
    """By each card."""
    tokens_per_second: float | None
    """Of all requests together, at most; None for a chip whose bandwidth is not known."""


def decode(
    text: TextConfig,
    weights: CardWeights,
    layout: Layout,
    bandwidth: float | None,
    batch: int,
    context: int,
) -> Decode:
    """What a step reads: the language model but its table of embeddings, and the requests' KV cache.

    Of the routed experts only those that some token chose: experts · (1 - (1 - k / experts) ** batch)
    of them, if tokens choose at random. Tokens a second = batch · bandwidth / bytes.
    """
    chosen = 1 - (1 - text.experts_per_token / text.experts) ** batch
    dense = weights.language - weights.experts - weights.embedding
    full = text.count(LayerKind.FULL) * context
    sliding = text.count(LayerKind.SLIDING) * min(context, text.sliding_window)
    read = int(dense + weights.experts * chosen + batch * layout.layer_bytes * (full + sliding))
    return Decode(batch, context, read, batch * bandwidth / read if bandwidth else None)
