# SPDX-License-Identifier: Apache-2.0
"""``config.json`` and ``generation_config.json`` of the tiny model: the published fields, smaller numbers.

Every feature of the published model is on. What is small is chosen so that each of them is
felt within a prompt of forty tokens, and so that the real vLLM 0.20.2 can run it on a CPU:
``head_dim`` is the least that its attention has, and the experts' width of 24 keeps them off
compiled kernels that know neither a clamp nor every processor. Two ranks can share it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from target.vllm_half_checkpoint import ARCHITECTURE, FULL, SLIDING, Size
from tiny.tokenizer import BEGIN, IMAGE_TOKEN, STOPS, VOCABULARY

TINY = Size(
    vocabulary=VOCABULARY,
    hidden=64,
    dense_layers=2,
    moe_layers=3,
    mtp_layers=3,
    intermediate=96,
    heads=4,
    sliding_heads=6,
    groups=2,
    head_dim=32,
    experts=8,
    expert_width=24,
    vision_width=48,
    vision_heads=4,
    vision_layers=2,
    vision_inner=280,
)
FOR_EIGHT_RANKS = replace(TINY, heads=16, sliding_heads=24, groups=8, vision_width=64, vision_heads=8)
"""As published, a group and two or three heads of it for each rank."""

CHOSEN_EXPERTS = 3
WINDOW = 16
CONTEXT = 8192
"""A picture of 3024x3024 costs 3164 tokens."""

LIMIT, SHARED_LIMIT = 7, 16
CLAMPED_LAYERS = (TINY.layers - 2, TINY.layers - 1)
"""The last two of the main layers: one sliding, one full, as published."""


def write_configs(size: Size = TINY) -> dict[str, dict[str, Any]]:
    """Content by file name."""
    return {"config.json": config(size), "generation_config.json": generation_config()}


def config(size: Size) -> dict[str, Any]:
    return {
        "architectures": [ARCHITECTURE],
        "auto_map": {"AutoConfig": "configuration_step3p7.Step3p7Config"},
        "model_type": "step3p7",
        "torch_dtype": "bfloat16",
        "image_token_id": IMAGE_TOKEN,
        "image_token_len": 169,
        "patch_token_len": 81,
        "im_start_token": "<im_start>",
        "im_end_token": "<im_end>",
        "im_patch_token": "<im_patch>",
        "use_im_start_end": True,
        "vision_select_layer": -1,
        "understand_projector_stride": 2,
        "projector_bias": False,
        "tie_word_embeddings": False,
        "vision_config": vision_config(size),
        "text_config": text_config(size) | attention_config(size) | rotary_config(size) | expert_config(size),
    }


def generation_config() -> dict[str, Any]:
    return {
        "bos_token_id": BEGIN,
        "eos_token_id": STOPS,
        "do_sample": True,
        "temperature": 1.0,
        "top_p": 0.95,
    }


def vision_config(size: Size) -> dict[str, Any]:
    return {
        "model_type": "perception_encoder",
        "image_size": size.image_size,
        "patch_size": size.patch_size,
        "width": size.vision_width,
        "layers": size.vision_layers,
        "heads": size.vision_heads,
        "mlp_ratio": size.vision_inner / size.vision_width,
        "use_cls_token": False,
        "ls_init_value": 0.1,
        "use_ln_pre": True,
        "use_ln_post": False,
        "use_abs_posemb": True,
        "use_rope2d": True,
        "hidden_act": "quick_gelu",
        "layer_norm_eps": 1e-5,
        "output_dim": None,
        "pool_type": "none",
    }


def text_config(size: Size) -> dict[str, Any]:
    return {
        "architectures": ["Step3p5ForCausalLM"],
        "model_type": "step3p5",
        "torch_dtype": "bfloat16",
        "hidden_size": size.hidden,
        "intermediate_size": size.intermediate,
        "num_hidden_layers": size.layers,
        "num_nextn_predict_layers": size.mtp_layers,
        "vocab_size": size.vocabulary,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": CONTEXT,
        "max_seq_len": CONTEXT,
        "bos_token_id": BEGIN,
        "eos_token_id": STOPS,
        "tie_word_embeddings": False,
    }


def attention_config(size: Size) -> dict[str, Any]:
    return {
        "num_attention_heads": size.heads,
        "num_attention_groups": size.groups,
        "head_dim": size.head_dim,
        "att_impl_type": "GQA",
        "use_qk_norm": True,
        "zero_centered": True,
        "sink": False,
        "use_head_wise_attn_gate": True,
        "sliding_window": WINDOW,
        "layer_types": size.layer_types,
        "attention_other_setting": {
            "attention_type": SLIDING,
            "num_attention_heads": size.sliding_heads,
            "num_attention_groups": size.groups,
            "head_dim": size.head_dim,
            "true_head_dim": size.head_dim,
        },
    }


def rotary_config(size: Size) -> dict[str, Any]:
    """The wavelengths of a full layer, 6 to 4.5 million, lie on both sides of the scaling's two bounds."""
    kinds = size.layer_types
    return {
        "rope_theta": [5e6 if kind == FULL else 1e4 for kind in kinds],
        "partial_rotary_factors": [0.5 if kind == FULL else 1.0 for kind in kinds],
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 2.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 32.0,
            "original_max_position_embeddings": CONTEXT // 2,
        },
        "yarn_only_types": [FULL],
        "use_rope_layers": [],
    }


def expert_config(size: Size) -> dict[str, Any]:
    indices = range(len(size.layer_types))
    return {
        "use_moe": True,
        "moe_layers_enum": ",".join(map(str, range(size.dense_layers, size.layers))),
        "moe_every_n_layer": 1,
        "moe_layer_offset": 0,
        "moe_num_experts": size.experts,
        "moe_top_k": CHOSEN_EXPERTS,
        "moe_intermediate_size": size.expert_width,
        "share_expert_dim": size.expert_width,
        "moe_router_activation": "sigmoid",
        "moe_router_scaling_factor": 3.0,
        "norm_expert_weight": True,
        "need_fp32_gate": True,
        "use_moe_router_bias": True,
        "swiglu_limits": [LIMIT if index in CLAMPED_LAYERS else 0.0 for index in indices],
        "swiglu_limits_shared": [SHARED_LIMIT if index in CLAMPED_LAYERS else 0.0 for index in indices],
    }
