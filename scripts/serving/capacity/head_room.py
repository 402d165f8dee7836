# SPDX-License-Identifier: Apache-2.0
"""What a start needs beside weights and KV cache. An assumption: it was computed, not measured on an NPU.

vLLM measures it in a dummy run and gives the rest to the KV cache; the log then says
"Available KV cache memory". Whoever has seen that figure should plan with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from serving.model.model_config import CROP_PIXELS, GLOBAL_VIEW_PIXELS, ModelConfig, TextConfig

from . import image_tokens
from .plan_request import MOST_SEQUENCES, PlanRequest

GIB = 1 << 30

RUNTIME_GIB = 1.5
"""HCCL buffers (200 MB each way for each of three groups, vllm-ascend's default), graphs, fragments."""


@dataclass(frozen=True)
class HeadRoom:
    """Bytes on one card."""

    activations: int
    encoder: int
    runtime: int

    @property
    def total(self) -> int:
        return self.activations + self.encoder + self.runtime


def head_room(config: ModelConfig, request: PlanRequest) -> HeadRoom:
    """As given in the request, else the assumption."""
    if request.head_room is not None:
        return HeadRoom(0, 0, int(request.head_room * GIB))
    return HeadRoom(_activations(config.text, request), _encoder(config, request), int(RUNTIME_GIB * GIB))


def _activations(text: TextConfig, request: PlanRequest) -> int:
    """The widest layer, an MoE one, for a full batch, and the logits of all requests.

    tokens · value · (k · (2 · hidden + 3 · expert / tp) + 4 · hidden): each token goes to k experts,
    with input and output of the hidden size, gate, up and product between; four copies of the
    hidden state around it. Then 2 · requests · vocabulary · 4 for the logits in float32.
    """
    inner = 2 * text.hidden_size + 3 * text.expert_width // request.tp
    values = text.experts_per_token * inner + 4 * text.hidden_size
    requests = request.max_num_seqs or MOST_SEQUENCES
    logits = 2 * requests * text.vocab_size * 4
    return request.max_num_batched_tokens * request.dtype_bytes * values + logits


def _encoder(config: ModelConfig, request: PlanRequest) -> int:
    """The vision tower on as many of the largest pictures as one batch takes, and its cache.

    patches · value · (4 · width + 3 · (width + mlp) / tower_tp): copies of the hidden state, q, k
    and v, three of the MLP. In data mode each card has its share of the views instead.
    """
    vision = config.vision
    most = image_tokens.most_tokens(vision.crops)
    pictures = max(1, request.max_num_batched_tokens // most)
    crop, view = ((side // vision.patch_size) ** 2 for side in (CROP_PIXELS, GLOBAL_VIEW_PIXELS))
    grid = image_tokens.crops_of(image_tokens.LARGEST_SIDE, image_tokens.LARGEST_SIDE)
    patches = pictures * (view + (grid.count * crop if vision.crops else 0))
    on_this_card = patches * request.tower_tp // request.tp
    values = 4 * vision.width + 3 * (vision.width + vision.mlp_width) // request.tower_tp
    cache = max(request.max_num_batched_tokens, most) * config.text.hidden_size
    return request.dtype_bytes * (on_this_card * values + cache)
