# SPDX-License-Identifier: Apache-2.0
"""Every tensor that a checkpoint of a given config holds, and where tensor parallelism puts it.

The names are those that the loaders of vLLM 0.20.2 look for (``step3p5.py``, ``step_vl.py``,
``step3p5_mtp.py``), in the flat layout of the published bfloat16 checkpoint; `flat_name` brings
the grouped layout to the same names. For the published config the list has 1,471 tensors and
402,730,656,512 bytes, the MTP layers' 51 among them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from .model_config import LayerKind, ModelConfig, TextConfig, VisionConfig

VOCAB_PADDING = 64
"""vLLM pads the vocabulary to a multiple of this before it divides it (``vocab_parallel_embedding.py``)."""


class Part(Enum):
    """Which part of the model a tensor belongs to. MTP tensors are in the files and are not loaded."""

    TEXT = "text"
    VISION = "vision"
    MTP = "MTP"


class Split(Enum):
    """What becomes of a tensor on ``tp`` cards."""

    REPLICATED = "whole on every card"
    DIVIDED = "one tp-th on every card"
    KV_HEADS = "divided by KV heads, each of which is whole on at least one card"
    VOCABULARY = "divided by rows, after padding"
    EXPERTS = "each expert divided, or whole experts given to cards (expert parallel)"


@dataclass(frozen=True)
class Weight:
    """One tensor of a checkpoint.

    ``dtype`` is as safetensors names it; ``float32_in_memory`` marks what vLLM holds in
    float32 whatever the file and ``--dtype`` say (the router).
    """

    name: str
    shape: tuple[int, ...]
    part: Part
    split: Split = Split.REPLICATED
    dtype: str = "BF16"
    float32_in_memory: bool = False
    shares_parameter: bool = False
    """vLLM stacks it with others into one parameter, and does not notice its absence."""

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes_on_disk(self) -> int:
        return self.elements * (4 if self.dtype == "F32" else 2)


def expected(config: ModelConfig) -> tuple[Weight, ...]:
    """All tensors of a checkpoint with this config, MTP included."""
    return (*_language(config.text), *_vision(config), *_mtp(config.text))


def flat_name(name: str) -> str:
    """A tensor's name in the flat layout, as the kit's ``hf_to_vllm_mapper`` treats the two layouts alike."""
    for grouped, flat in (
        ("model.vision_model.", "vision_model."),
        ("model.vit_large_projector.", "vit_large_projector."),
        ("model.language_model.", "model."),
    ):
        if name.startswith(grouped):
            return flat + name.removeprefix(grouped)
    return name


def is_silently_ignored(flat: str) -> bool:
    """vLLM's text loader skips a name that it does not know; elsewhere such a name stops the start."""
    return flat.startswith("model.")


# --- the language model -----------------------------------------------------------


def _language(text: TextConfig) -> Iterator[Weight]:
    vocabulary = (text.vocab_size, text.hidden_size)
    yield Weight("model.embed_tokens.weight", vocabulary, Part.TEXT, Split.VOCABULARY)
    for layer in range(text.layers):
        yield from _layer(text, layer, Part.TEXT)
    yield Weight("model.norm.weight", (text.hidden_size,), Part.TEXT)
    yield Weight("lm_head.weight", vocabulary, Part.TEXT, Split.VOCABULARY)


def _layer(text: TextConfig, layer: int, part: Part) -> Iterator[Weight]:
    prefix = f"model.layers.{layer}."
    yield from _attention(text, text.kind(layer), prefix + "self_attn.", part)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield Weight(f"{prefix}{norm}.weight", (text.hidden_size,), part)
    if layer in text.moe_layers:
        yield from _moe(text, prefix, part)
    else:
        yield from _mlp(text.hidden_size, text.dense_width, prefix + "mlp.", part)


def _attention(text: TextConfig, kind: LayerKind, prefix: str, part: Part) -> Iterator[Weight]:
    heads = text.attention[kind]
    sizes = {"q": heads.heads * heads.head_dim, "k": heads.groups * heads.head_dim}
    sizes["v"] = sizes["k"]
    for name, size in sizes.items():
        split = Split.DIVIDED if name == "q" else Split.KV_HEADS
        weight = f"{prefix}{name}_proj.weight"
        yield Weight(weight, (size, text.hidden_size), part, split, shares_parameter=True)
        if text.attention_bias:
            yield Weight(f"{prefix}{name}_proj.bias", (size,), part, split, shares_parameter=True)
    yield Weight(f"{prefix}o_proj.weight", (text.hidden_size, sizes["q"]), part, Split.DIVIDED)
    for name in ("q_norm", "k_norm"):
        yield Weight(f"{prefix}{name}.weight", (heads.head_dim,), part)
    if text.head_gate:
        yield Weight(f"{prefix}g_proj.weight", (heads.heads, text.hidden_size), part, Split.DIVIDED)


def _mlp(hidden: int, width: int, prefix: str, part: Part) -> Iterator[Weight]:
    for name in ("gate_proj", "up_proj"):
        weight = f"{prefix}{name}.weight"
        yield Weight(weight, (width, hidden), part, Split.DIVIDED, shares_parameter=True)
    yield Weight(f"{prefix}down_proj.weight", (hidden, width), part, Split.DIVIDED)


def _moe(text: TextConfig, prefix: str, part: Part) -> Iterator[Weight]:
    """The experts come packed, one tensor for all; the shared expert lies at the layer, not under ``moe``."""
    hidden, width, experts = text.hidden_size, text.expert_width, text.experts
    for name in ("gate_proj", "up_proj"):
        weight = f"{prefix}moe.{name}.weight"
        yield Weight(weight, (experts, width, hidden), part, Split.EXPERTS, shares_parameter=True)
    yield Weight(f"{prefix}moe.down_proj.weight", (experts, hidden, width), part, Split.EXPERTS)
    yield Weight(f"{prefix}moe.gate.weight", (experts, hidden), part, float32_in_memory=True)
    yield Weight(f"{prefix}moe.router_bias", (experts,), part, dtype="F32", float32_in_memory=True)
    yield from _mlp(hidden, text.shared_width, prefix + "share_expert.", part)


def _mtp(text: TextConfig) -> Iterator[Weight]:
    """The MTP layers behind the last layer. Their head goes through ``transformer.`` in the files."""
    hidden = text.hidden_size
    for layer in range(text.layers, text.layers + text.mtp_layers):
        yield from _layer(text, layer, Part.MTP)
        prefix = f"model.layers.{layer}."
        for norm in ("enorm", "hnorm", "transformer.shared_head.norm"):
            yield Weight(f"{prefix}{norm}.weight", (hidden,), Part.MTP)
        yield Weight(f"{prefix}eh_proj.weight", (hidden, 2 * hidden), Part.MTP)
        output = f"{prefix}transformer.shared_head.output.weight"
        yield Weight(output, (text.vocab_size, hidden), Part.MTP, Split.VOCABULARY)


# --- the vision tower -------------------------------------------------------------


def _vision(config: ModelConfig) -> Iterator[Weight]:
    """The tower and the projector. Biases of row-parallel layers and the convolutions are never divided."""
    vision, width = config.vision, config.vision.width
    side = vision.image_size // vision.patch_size
    patch = (width, 3, vision.patch_size, vision.patch_size)
    yield Weight("vision_model.conv1.weight", patch, Part.VISION)
    if vision.cls_token:
        yield Weight("vision_model.class_embedding", (width,), Part.VISION)
    if vision.position_embedding:
        positions = side * side + int(vision.cls_token)
        yield Weight("vision_model.positional_embedding", (positions, width), Part.VISION)
    for present, norm in ((vision.ln_pre, "ln_pre"), (vision.ln_post, "ln_post")):
        if present:
            yield from _with_bias(f"vision_model.{norm}", (width,), Split.REPLICATED, Split.REPLICATED)
    for block in range(vision.layers):
        yield from _vision_block(vision, f"vision_model.transformer.resblocks.{block}.")
    for number, factor in ((1, 2), (2, 4)):
        shape = (factor * width, factor * width // 2, 3, 3)
        yield from _with_bias(
            f"vision_model.vit_downsampler{number}", shape, Split.REPLICATED, Split.REPLICATED
        )
    projector = (config.text.hidden_size, 4 * width)
    yield Weight("vit_large_projector.weight", projector, Part.VISION, Split.DIVIDED)
    if config.projector_bias:
        yield Weight("vit_large_projector.bias", projector[:1], Part.VISION, Split.DIVIDED)


def _vision_block(vision: VisionConfig, prefix: str) -> Iterator[Weight]:
    width, inner = vision.width, vision.mlp_width
    yield Weight(f"{prefix}attn.in_proj_weight", (3 * width, width), Part.VISION, Split.DIVIDED)
    yield Weight(f"{prefix}attn.in_proj_bias", (3 * width,), Part.VISION, Split.DIVIDED)
    yield from _with_bias(f"{prefix}attn.out_proj", (width, width), Split.DIVIDED, Split.REPLICATED)
    for norm in ("ln_1", "ln_2"):
        yield from _with_bias(f"{prefix}{norm}", (width,), Split.REPLICATED, Split.REPLICATED)
    if vision.layer_scale:
        for scale in ("ls_1", "ls_2"):
            yield Weight(f"{prefix}{scale}.gamma", (width,), Part.VISION)
    yield from _with_bias(f"{prefix}mlp.c_fc", (inner, width), Split.DIVIDED, Split.DIVIDED)
    yield from _with_bias(f"{prefix}mlp.c_proj", (width, inner), Split.DIVIDED, Split.REPLICATED)


def _with_bias(name: str, shape: tuple[int, ...], weight: Split, bias: Split) -> Iterator[Weight]:
    yield Weight(f"{name}.weight", shape, Part.VISION, weight)
    yield Weight(f"{name}.bias", shape[:1], Part.VISION, bias)
