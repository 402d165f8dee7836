# SPDX-License-Identifier: Apache-2.0
"""The weights on one card, as vLLM's parallel layers divide them.

Which layer is of which kind was read off ``step3p5.py``, ``step_vl.py`` and ``step3p5_mtp.py``;
`weights.expected` carries it as `Split`. vllm-ascend divides in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from serving.model.model_config import LayerKind, ModelConfig
from serving.model.weights import VOCAB_PADDING, Part, Split, Weight, expected

from .plan_request import PlanRequest, VisionMode


@dataclass(frozen=True)
class CardWeights:
    """Bytes on the fullest card. ``mtp`` is what the MTP layers would take; nothing loads them here."""

    language: int
    vision: int
    mtp: int
    experts: int
    """The routed experts, a part of ``language``."""
    embedding: int
    """The table of input embeddings, a part of ``language``, of which a step reads a few rows."""

    @property
    def loaded(self) -> int:
        return self.language + self.vision


def card_weights(config: ModelConfig, request: PlanRequest) -> CardWeights:
    """Sum of all tensors, each by its own share and in the type that vLLM holds it in."""
    sizes = [(weight, bytes_on_card(weight, config, request)) for weight in expected(config)]

    def total(part: Part) -> int:
        return sum(size for weight, size in sizes if weight.part is part)

    return CardWeights(
        language=total(Part.TEXT),
        vision=total(Part.VISION),
        mtp=total(Part.MTP),
        experts=sum(s for w, s in sizes if w.split is Split.EXPERTS and w.part is Part.TEXT),
        embedding=sum(s for w, s in sizes if w.name == "model.embed_tokens.weight"),
    )


def bytes_on_card(weight: Weight, config: ModelConfig, request: PlanRequest) -> int:
    """One tensor's bytes on the fullest card: elements · share · bytes of a value (4 for the router)."""
    value = 4 if weight.float32_in_memory else request.dtype_bytes
    return int(weight.elements * _share(weight, config, request) * value)


def _share(weight: Weight, config: ModelConfig, request: PlanRequest) -> Fraction:
    """The part of a tensor that one card holds.

    KV heads: max(1, groups // tp) of the groups. Vocabulary: rows padded to 64, then 1/tp.
    Experts: 1/tp of each, or ceil(experts / tp) whole ones where expert parallel is on.
    """
    tp = request.tower_tp if weight.part is Part.VISION else request.tp
    match weight.split:
        case Split.REPLICATED:
            return Fraction(1)
        case Split.DIVIDED:
            return Fraction(1, tp)
        case Split.KV_HEADS:
            groups = config.text.attention[LayerKind.FULL].groups
            return Fraction(max(1, groups // tp), groups)
        case Split.VOCABULARY:
            rows = weight.shape[0]
            return Fraction(padded_vocabulary(rows), rows * tp)
        case Split.EXPERTS:
            experts = weight.shape[0]
            whole = Fraction(-(-experts // tp), experts)
            return whole if request.expert_parallel else Fraction(1, tp)


def padded_vocabulary(rows: int) -> int:
    """Rows of the embedding table, padded (``pad_vocab_size``)."""
    return -(-rows // VOCAB_PADDING) * VOCAB_PADDING


def obstacles(config: ModelConfig, request: PlanRequest) -> Iterator[str]:
    """Why vLLM would not start on so many cards: each size that they do not divide."""
    text, vision, tp = config.text, config.vision, request.tp
    sizes = {
        "attention heads of the full layers": text.attention[LayerKind.FULL].heads,
        "attention heads of the sliding layers": text.attention[LayerKind.SLIDING].heads,
        "rows of the vocabulary": padded_vocabulary(text.vocab_size),
        "channels of the dense layers": text.dense_width,
        "channels of the shared expert": text.shared_width,
    }
    if not request.expert_parallel:
        sizes["channels of an expert"] = text.expert_width
    if request.vision is VisionMode.WEIGHTS:
        sizes["heads of the vision tower (--mm-encoder-tp-mode data avoids this)"] = vision.heads
        sizes["channels of the vision tower"] = vision.mlp_width
    for kind, attention in text.attention.items():
        if attention.groups % tp and tp % attention.groups:
            yield f"{attention.groups} KV heads ({kind.value}) neither divide {tp} nor are divided by it"
    for name, size in sizes.items():
        if size % tp:
            yield f"{size} {name} cannot be divided by {tp}"
    if tp > text.experts:
        yield f"{tp} cards are more than the {text.experts} experts"
