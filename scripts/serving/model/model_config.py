# SPDX-License-Identifier: Apache-2.0
"""``config.json`` as vLLM 0.20.2 reads it for this model: what it says, and what is wrong with it.

The fields are those that ``step3p5.py``, ``step_vl.py`` and ``step3_vl.py`` of vLLM read.
A field that config.json lacks may still come out of the folder's configuration code; that
is looked up in its syntax tree (`config_source`), for the code is never run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from serving.findings import Finding, Severity, counted, note, ok, problem, warning

from .config_section import Section, is_number, is_whole, show
from .config_source import Module

MODEL_TYPE = "step3p7"
ARCHITECTURE = "Step3p7ForConditionalGeneration"
TEXT_ARCHITECTURE = "Step3p5ForCausalLM"

GLOBAL_VIEW_PIXELS = 728
CROP_PIXELS = 504
GLOBAL_VIEW_TOKENS = 169
CROP_TOKENS = 81
"""What ``Step3VLImageProcessor`` of vLLM resizes to and counts with; it reads none of it from the config."""

ROUTED_CLAMP = 7.0
"""The one clamp of the routed experts that vLLM's ``FusedMoEBlock`` accepts."""

_MOST_LAYERS = 1024
"""Bound on what a config may claim, so that a broken one cannot ask for endless lists."""


class LayerKind(Enum):
    """How a layer attends; the values are those of ``layer_types``."""

    FULL = "full_attention"
    SLIDING = "sliding_attention"


@dataclass(frozen=True)
class Attention:
    """The heads of one kind of layer."""

    heads: int
    groups: int
    """KV heads."""
    head_dim: int


@dataclass(frozen=True)
class TextConfig:
    """The language model. ``kinds`` covers the MTP layers behind the last one, as far as known."""

    hidden_size: int
    dense_width: int
    layers: int
    mtp_layers: int
    vocab_size: int
    max_positions: int
    kinds: tuple[LayerKind, ...]
    attention: Mapping[LayerKind, Attention]
    sliding_window: int
    """Tokens."""
    head_gate: bool
    attention_bias: bool
    moe_layers: frozenset[int]
    experts: int
    experts_per_token: int
    expert_width: int
    shared_width: int

    def kind(self, layer: int) -> LayerKind:
        """The kind of a layer; an MTP layer that ``layer_types`` does not reach is a full one."""
        return self.kinds[layer] if layer < len(self.kinds) else LayerKind.FULL

    def count(self, kind: LayerKind) -> int:
        """How many of the loaded layers (MTP apart) are of this kind."""
        return sum(self.kind(layer) is kind for layer in range(self.layers))


@dataclass(frozen=True)
class VisionConfig:
    """The vision tower, ``PerceptionEncoder``."""

    width: int
    layers: int
    heads: int
    patch_size: int
    image_size: int
    mlp_width: int
    """``int(width * mlp_ratio)``, as the tower computes it."""
    layer_scale: bool
    cls_token: bool
    ln_pre: bool
    ln_post: bool
    position_embedding: bool
    crops: bool
    """Large pictures are cut into crops (``enable_patch``, True unless the config says otherwise)."""


@dataclass(frozen=True)
class ModelConfig:
    text: TextConfig
    vision: VisionConfig
    projector_bias: bool
    dtype: str | None
    """As the config names it, e.g. "bfloat16"."""


@dataclass(frozen=True)
class Reading:
    """``config`` is None where what the shapes depend on is missing or makes no sense."""

    config: ModelConfig | None
    findings: tuple[Finding, ...]


def read(values: Mapping[str, Any], code: Module | None, entry: str = "") -> Reading:
    """What config.json says, with all findings about it.

    Args:
        values: the parsed config.json.
        code: the parsed configuration module that ``auto_map`` names, None if there is none to read.
        entry: the class in it that ``auto_map`` names.
    """
    findings: list[Finding] = []
    _check_identity(values, findings)
    text_values, vision_values = (
        _sub_config(values, key, findings) for key in ("text_config", "vision_config")
    )
    text_code = code.for_part(text_values.get("model_type"), ("Text", "Step3p5")) if code else None
    vision_code = code.for_part(vision_values.get("model_type"), ("Vision",)) if code else None
    text = Section("text_config.", text_values, text_code, findings)
    vision = Section("vision_config.", vision_values, vision_code, findings)
    top = Section("", values, code.classes.get(entry) if code else None, findings)
    config = ModelConfig(
        text=_text(text),
        vision=_vision(vision),
        projector_bias=top.flag("projector_bias", published=False),
        dtype=_dtype(values, text_values),
    )
    top.whole("image_token_id", lowest=0)
    for section in (top, text, vision):
        section.report_code()
    if not any(finding.severity is Severity.PROBLEM for finding in findings):
        findings.append(ok("config", "config.json", _summary(config)))
    usable = top.usable and text.usable and vision.usable
    return Reading(config if usable else None, tuple(findings))


def _summary(config: ModelConfig) -> str:
    text = config.text
    counts = f"{text.count(LayerKind.FULL)} full and {text.count(LayerKind.SLIDING)} sliding attention layers"
    moe = len([layer for layer in text.moe_layers if layer < text.layers])
    return (
        f"{MODEL_TYPE}, {ARCHITECTURE}; {counts}, {moe} of them MoE with {text.experts} experts, "
        f"{counted(text.mtp_layers, 'MTP layer')} behind; vision tower of {config.vision.layers} layers"
    )


# --- the whole file ---------------------------------------------------------------


def _check_identity(values: Mapping[str, Any], findings: list[Finding]) -> None:
    """Is this the model at all, and in a form that the kit can serve?"""
    subject = "config.json"
    model_type = values.get("model_type")
    if model_type == "step3p5":
        what = (
            'model_type is "step3p5": this is the text-only Step-3.5, or a config cut down to its text part'
        )
        cure = "Step-3.5 needs no patch; for Step-3.7-Flash fetch its own config.json again"
        findings.append(problem("model-type", subject, what, cure))
    elif model_type != MODEL_TYPE:
        what = f'model_type is {show(model_type)}, where Step-3.7-Flash has "{MODEL_TYPE}"'
        findings.append(problem("model-type", subject, what, "point to the folder of Step-3.7-Flash"))
    architectures = values.get("architectures")
    if not isinstance(architectures, list) or ARCHITECTURE not in architectures:
        what = f'architectures is {show(architectures)}, where vLLM looks up ["{ARCHITECTURE}"]'
        findings.append(problem("architectures", subject, what, "fetch the model's own config.json again"))
    text = values.get("text_config")
    for where, part in (("", values), ("text_config.", text)):
        if isinstance(part, dict) and part.get("quantization_config") is not None:
            findings.append(
                _quantised(f"config.json {where}quantization_config", part["quantization_config"])
            )


def _quantised(subject: str, value: object) -> Finding:
    method = value.get("quant_method") if isinstance(value, dict) else None
    what = (
        f"this checkpoint is quantised ({show(method)}), and the quantised MoE of this vllm-ascend has no "
        "SwiGLU-step clamp: layers 43 and 44 would compute wrong values without a word"
    )
    return problem(
        "quantised", subject, what, "serve the bfloat16 checkpoint; this set does not support others"
    )


def _sub_config(values: Mapping[str, Any], key: str, findings: list[Finding]) -> Mapping[str, Any]:
    found = values.get(key)
    if isinstance(found, dict):
        return found
    what = f"is {show(found)}, where an object is needed"
    findings.append(
        problem("config-part", f"config.json {key}", what, "fetch the model's own config.json again")
    )
    return {}


def _dtype(values: Mapping[str, Any], text: Mapping[str, Any]) -> str | None:
    for part in (values, text):
        for key in ("dtype", "torch_dtype"):
            if isinstance(part.get(key), str):
                return str(part[key])
    return None


# --- the language model -----------------------------------------------------------


def _text(section: Section) -> TextConfig:
    layers = section.whole("num_hidden_layers", highest=_MOST_LAYERS)
    mtp = _mtp_layers(section)
    counted = section.usable
    kinds = _kinds(section, layers, mtp) if counted else ()
    heads = section.whole("num_attention_heads")
    hidden = section.whole("hidden_size")
    full = Attention(
        heads=heads,
        groups=section.whole("num_attention_groups", lowest=2),
        head_dim=_head_dim(section, hidden // heads),
    )
    sliding = _sliding_attention(section, full)
    window = section.whole("sliding_window", "vLLM would keep the whole context in every layer")
    config = TextConfig(
        hidden_size=hidden,
        dense_width=section.whole("intermediate_size"),
        layers=layers,
        mtp_layers=mtp,
        vocab_size=section.whole("vocab_size"),
        max_positions=section.whole("max_position_embeddings", highest=1 << 30),
        kinds=kinds,
        attention={LayerKind.FULL: full, LayerKind.SLIDING: sliding},
        sliding_window=window,
        head_gate=section.flag(
            "use_head_wise_attn_gate", "vLLM would build no g_proj and leave the gate out", published=True
        ),
        attention_bias=section.value("attention_bias") is True,
        moe_layers=_moe_layers(section, layers),
        experts=section.whole("moe_num_experts", highest=1 << 16),
        experts_per_token=section.whole("moe_top_k", highest=1 << 16),
        expert_width=section.whole("moe_intermediate_size"),
        shared_width=section.whole("share_expert_dim"),
    )
    _check_text_values(section)
    if counted:
        _check_per_layer_lists(section, layers, mtp)
        _check_clamps(section, config)
    return config


def _mtp_layers(section: Section) -> int:
    found = section.value("num_nextn_predict_layers")
    if found is None:
        return 0
    if is_whole(found) and 0 <= found <= _MOST_LAYERS:
        return int(found)
    section.problem("config-value", "num_nextn_predict_layers", f"is {show(found)}, not a number of layers")
    return 0


def _kinds(section: Section, layers: int, mtp: int) -> tuple[LayerKind, ...]:
    found = section.required("layer_types", "vLLM would take every second layer for a sliding one")
    if found is None:
        return ()
    entries = section.per_layer("layer_types", found, layers, mtp, "vLLM stops with an IndexError")
    known = {kind.value: kind for kind in LayerKind}
    strange = [entry for entry in entries if not isinstance(entry, str) or entry not in known]
    if strange or len(entries) < layers:
        section.usable = False
    if strange:
        section.problem(
            "config-value", "layer_types", f"holds {show(strange[0])}, which is none of {[*known]}"
        )
        return ()
    return tuple(known[entry] for entry in entries)


def _head_dim(section: Section, otherwise: int) -> int:
    found = section.value("head_dim")
    if found is None:
        section.findings.append(
            note("config-field", section.subject("head_dim"), f"is not there; vLLM takes {otherwise}")
        )
        return max(otherwise, 1)
    return section.whole("head_dim")


def _sliding_attention(section: Section, full: Attention) -> Attention:
    """``attention_other_setting``: the heads of the sliding layers."""
    key = "attention_other_setting"
    found = section.required(key, "vLLM would give the sliding layers the heads of the full ones")
    if found is None:
        return full
    if not isinstance(found, dict):
        section.problem("config-value", key, f"is {show(found)}, where an object is needed")
        section.usable = False
        return full
    if found.get("attention_type") != LayerKind.SLIDING.value:
        what = f'.attention_type is {show(found.get("attention_type"))}, where "sliding_attention" is needed'
        section.problem("config-value", key, what)
        section.usable = False
        return full
    inner = Section(f"{section.name}{key}.", found, None, section.findings)
    sizes = [inner.whole(name) for name in ("num_attention_heads", "num_attention_groups", "head_dim")]
    section.usable = section.usable and inner.usable
    return Attention(*sizes)


def _moe_layers(section: Section, layers: int) -> frozenset[int]:
    """``moe_layers_enum`` is a string of numbers with commas: vLLM calls ``strip`` and ``split`` on it."""
    key = "moe_layers_enum"
    found = section.required(key, "vLLM would take every layer but the first for an MoE one")
    if found is None:
        return frozenset()
    try:
        if not isinstance(found, str) or len(found) > 8 * _MOST_LAYERS:
            raise ValueError
        numbers = frozenset(int(part) for part in found.strip().split(","))
    except ValueError:
        section.usable = False
        section.problem("config-value", key, f'is {show(found)}, where a text such as "3,4,5" is needed')
        return frozenset()
    if section.usable and not any(0 <= number < layers for number in numbers):
        section.problem(
            "config-value", key, "names no layer of this model: vLLM stops, it needs an MoE layer"
        )
    return numbers


def _check_text_values(section: Section) -> None:
    section.must_be("att_impl_type", "GQA", "vLLM knows only GQA here and stops with a ValueError")
    section.must_be("need_fp32_gate", True, "vLLM asserts it")
    section.must_be("use_moe_router_bias", True, "vLLM asserts it")
    section.must_be("moe_router_activation", "sigmoid", "the router of this model is a sigmoid")
    section.needed("rms_norm_eps")
    section.needed("norm_expert_weight")
    section.needed("moe_router_scaling_factor")
    section.needed("yarn_only_types", "vLLM would scale the rotary embedding of the sliding layers too")
    architectures = section.needed("architectures", "vLLM cannot look up the language model")
    if architectures is not None and (
        not isinstance(architectures, list) or TEXT_ARCHITECTURE not in architectures
    ):
        section.problem(
            "config-value", "architectures", f'is {show(architectures)}, not ["{TEXT_ARCHITECTURE}"]'
        )


def _check_per_layer_lists(section: Section, layers: int, mtp: int) -> None:
    theta = section.needed("rope_theta")
    if theta is not None and not is_number(theta):
        section.per_layer("rope_theta", theta, layers, mtp, "vLLM stops with an IndexError")
    factors = section.needed("partial_rotary_factors", "vLLM would rotate the whole head in every layer")
    if factors is not None:
        too_short = "vLLM stops with an IndexError"
        entries = section.per_layer("partial_rotary_factors", factors, layers, mtp, too_short)
        strange = [entry for entry in entries if not is_number(entry) or entry not in {1, 0.5}]
        if strange:
            what = f"holds {show(strange[0])}; vLLM asserts 1 or 0.5"
            section.problem("config-value", "partial_rotary_factors", what)
    if use_rope := section.value("use_rope_layers"):
        section.per_layer("use_rope_layers", use_rope, layers, mtp, "vLLM stops with an IndexError")


def _check_clamps(section: Section, config: TextConfig) -> None:
    """The per-layer clamps of the activation; null or 0 means no clamp."""
    layers, mtp = config.layers, config.mtp_layers
    for key, too_short in (
        ("swiglu_limits", "vLLM leaves the clamp out of the other layers without a word"),
        ("swiglu_limits_shared", "vLLM stops with an IndexError"),
    ):
        found = section.needed(key)
        if not section.has(key):
            continue
        if found is None or found == []:
            _warn_of_no_clamp(section, key)
            continue
        entries = section.per_layer(key, found, layers, mtp, too_short)[:layers]
        strange = [entry for entry in entries if entry is not None and not is_number(entry)]
        if strange:
            section.problem(
                "config-value", key, f"holds {show(strange[0])}, where a number or null is needed"
            )
        elif entries and not any(entries):
            _warn_of_no_clamp(section, key)
        elif key == "swiglu_limits":
            _check_routed_clamp(section, entries, config)


def _check_routed_clamp(section: Section, entries: Sequence[Any], config: TextConfig) -> None:
    others = {
        layer: entries[layer]
        for layer in sorted(config.moe_layers)
        if 0 <= layer < min(config.layers, len(entries)) and entries[layer] not in {None, 0, ROUTED_CLAMP}
    }
    if others:
        listed = ", ".join(f"{value:g} in layer {layer}" for layer, value in others.items())
        what = f"clamps the routed experts at {listed}; vLLM 0.20.2 asserts {ROUTED_CLAMP:g} and stops"
        section.problem("routed-clamp", "swiglu_limits", what)


def _warn_of_no_clamp(section: Section, key: str) -> None:
    what = "clamps no layer; the published model clamps layers 43 and 44"
    cure = "fetch the model's own config.json again, unless this is a variant that was trained so"
    section.findings.append(warning("no-clamp", section.subject(key), what, cure))


# --- the vision tower -------------------------------------------------------------


def _vision(section: Section) -> VisionConfig:
    width = section.whole("width")
    ratio = section.number("mlp_ratio")
    heads = section.whole("heads", highest=1 << 16)
    config = VisionConfig(
        width=width,
        layers=section.whole("layers", highest=_MOST_LAYERS),
        heads=heads,
        patch_size=section.whole("patch_size", highest=1 << 12),
        image_size=section.whole("image_size", highest=1 << 16),
        mlp_width=max(int(width * ratio), 1),
        layer_scale=_layer_scale(section),
        cls_token=section.flag("use_cls_token", published=False),
        ln_pre=section.flag("use_ln_pre", published=True),
        ln_post=section.flag("use_ln_post", published=False),
        position_embedding=section.flag("use_abs_posemb", published=True),
        crops=section.value("enable_patch") is not False,
    )
    section.must_be("use_rope2d", True, "vLLM stops with a ValueError")
    section.needed("hidden_act")
    section.needed("output_dim")
    if section.usable:
        _check_vision_sizes(section, config)
    return config


def _layer_scale(section: Section) -> bool:
    """``ls_init_value``; null builds no layer scale."""
    if "ls_init_value" in section.values:
        return section.value("ls_init_value") is not None
    section.needed("ls_init_value")
    return True


def _check_vision_sizes(section: Section, config: VisionConfig) -> None:
    if config.width % config.heads:
        what = f"{config.heads} heads do not divide a width of {config.width}"
        section.problem("config-value", "heads", what)
    counted = (
        vision_tokens(GLOBAL_VIEW_PIXELS, config.patch_size),
        vision_tokens(CROP_PIXELS, config.patch_size),
    )
    if counted != (GLOBAL_VIEW_TOKENS, CROP_TOKENS):
        what = (
            f"is {config.patch_size}: the tower would make {counted[0]} and {counted[1]} tokens of a view "
            f"and a crop, where vLLM's processor leaves room for {GLOBAL_VIEW_TOKENS} and {CROP_TOKENS}"
        )
        section.problem("config-value", "patch_size", what)


def vision_tokens(pixels: int, patch_size: int) -> int:
    """Tokens that the tower makes of a square whose side has ``pixels``.

    Two convolutions of stride 2, kernel 3, padding 1 (``step_vl.py``), each of which halves the
    side of the grid of patches, rounding up.
    """
    side = pixels // patch_size
    return math.ceil(math.ceil(side / 2) / 2) ** 2
