# SPDX-License-Identifier: Apache-2.0
"""Model folders for tests: a small whole one to damage, and one of the published size in sparse files.

The list of the tensors is that of all tests: from the published names and shapes, so that it
checks ``serving.model.weights`` and does not repeat it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from target.vllm_half_checkpoint import Layout, Size, rename, shapes

INDEX = "model.safetensors.index.json"
CODE_FILE = "configuration_step3p7.py"

Tensors = dict[str, tuple[str, tuple[int, ...]]]
"""Name to dtype (as safetensors names it) and shape."""

CODE = """\
from transformers.configuration_utils import PretrainedConfig


class Step3p7VisionConfig(PretrainedConfig):
    model_type = "perception_encoder"

    def __init__(self, width=8, layers=2, heads=2, use_ln_pre=True, output_dim=None, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.layers = layers
        self.heads = heads
        self.use_ln_pre = use_ln_pre
        self.output_dim = output_dim


class Step3p7TextConfig(PretrainedConfig):
    model_type = "step3p5"

    def __init__(self, hidden_size=4096, **kwargs):
        self.hidden_size = hidden_size
        super().__init__(**kwargs)


class Step3p7Config(PretrainedConfig):
    model_type = "step3p7"

    def __init__(self, vision_config=None, text_config=None, **kwargs):
        self.vision_config = Step3p7VisionConfig(**vision_config)
        self.text_config = Step3p7TextConfig(**text_config)
        super().__init__(**kwargs)
"""


def _config(text: dict[str, Any], vision: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["Step3p7ForConditionalGeneration"],
        "auto_map": {"AutoConfig": "configuration_step3p7.Step3p7Config"},
        "model_type": "step3p7",
        "image_token_id": 128001,
        "projector_bias": False,
        "tie_word_embeddings": False,
        "vision_config": {
            "model_type": "perception_encoder",
            "image_size": 728,
            "patch_size": 14,
            "use_cls_token": False,
            "ls_init_value": 0.1,
            "use_ln_pre": True,
            "use_ln_post": False,
            "use_abs_posemb": True,
            "use_rope2d": True,
            "hidden_act": "quick_gelu",
            "output_dim": None,
        }
        | vision,
        "text_config": {
            "architectures": ["Step3p5ForCausalLM"],
            "model_type": "step3p5",
            "torch_dtype": "bfloat16",
            "rms_norm_eps": 1e-05,
            "att_impl_type": "GQA",
            "use_head_wise_attn_gate": True,
            "rope_scaling": None,
            "yarn_only_types": ["full_attention"],
            "use_rope_layers": [],
            "moe_router_activation": "sigmoid",
            "moe_router_scaling_factor": 3.0,
            "norm_expert_weight": True,
            "need_fp32_gate": True,
            "use_moe_router_bias": True,
        }
        | text,
    }


def _kinds(count: int) -> list[str]:
    return ["full_attention" if layer % 4 == 0 else "sliding_attention" for layer in range(count)]


def published_config() -> dict[str, Any]:
    """The sizes of the published Step-3.7-Flash: 45 layers, 288 experts, 3 MTP layers."""
    kinds = _kinds(48)
    clamped = {43, 44}
    text = {
        "hidden_size": 4096,
        "intermediate_size": 11264,
        "num_hidden_layers": 45,
        "num_nextn_predict_layers": 3,
        "num_attention_heads": 64,
        "num_attention_groups": 8,
        "head_dim": 128,
        "vocab_size": 128896,
        "max_position_embeddings": 262144,
        "sliding_window": 512,
        "layer_types": kinds,
        "attention_other_setting": {
            "attention_type": "sliding_attention",
            "num_attention_heads": 96,
            "num_attention_groups": 8,
            "head_dim": 128,
        },
        "rope_theta": [5e6 if kind == "full_attention" else 1e4 for kind in kinds],
        "partial_rotary_factors": [0.5 if kind == "full_attention" else 1.0 for kind in kinds],
        "moe_layers_enum": ",".join(str(layer) for layer in range(3, 45)),
        "moe_num_experts": 288,
        "moe_top_k": 8,
        "moe_intermediate_size": 1280,
        "share_expert_dim": 1280,
        "swiglu_limits": [7 if layer in clamped else 0.0 for layer in range(48)],
        "swiglu_limits_shared": [16 if layer in clamped else 0.0 for layer in range(48)],
    }
    return _config(text, {"width": 1536, "layers": 47, "heads": 16, "mlp_ratio": 5.833333333333333})


def small_config() -> dict[str, Any]:
    """Five layers (0 and 4 full; 0 dense, the others of four experts), an MTP layer, a small tower."""
    kinds = _kinds(6)
    text = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 5,
        "num_nextn_predict_layers": 1,
        "num_attention_heads": 4,
        "num_attention_groups": 2,
        "head_dim": 8,
        "vocab_size": 64,
        "max_position_embeddings": 4096,
        "sliding_window": 16,
        "layer_types": kinds,
        "attention_other_setting": {
            "attention_type": "sliding_attention",
            "num_attention_heads": 6,
            "num_attention_groups": 2,
            "head_dim": 8,
        },
        "rope_theta": [5e6 if kind == "full_attention" else 1e4 for kind in kinds],
        "partial_rotary_factors": [0.5 if kind == "full_attention" else 1.0 for kind in kinds],
        "moe_layers_enum": "1,2,3,4",
        "moe_num_experts": 4,
        "moe_top_k": 2,
        "moe_intermediate_size": 12,
        "share_expert_dim": 12,
        "swiglu_limits": [0.0, 0.0, 0.0, 0.0, 7.0, 0.0],
        "swiglu_limits_shared": [0.0, 0.0, 0.0, 0.0, 16, 0.0],
    }
    return _config(text, {"width": 8, "layers": 2, "heads": 2, "mlp_ratio": 2.0})


# --- the tensors of such a config, by the published names --------------------------


def tensors_of(config: Mapping[str, Any]) -> Tensors:
    """Every tensor of a whole checkpoint, in the flat layout."""
    text, vision = config["text_config"], config["vision_config"]
    moe = [int(number) for number in text["moe_layers_enum"].split(",")]
    size = Size(
        vocabulary=text["vocab_size"],
        hidden=text["hidden_size"],
        dense_layers=moe[0],
        moe_layers=len(moe),
        mtp_layers=text["num_nextn_predict_layers"],
        intermediate=text["intermediate_size"],
        heads=text["num_attention_heads"],
        sliding_heads=text["attention_other_setting"]["num_attention_heads"],
        groups=text["num_attention_groups"],
        head_dim=text["head_dim"],
        experts=text["moe_num_experts"],
        expert_width=text["moe_intermediate_size"],
        vision_width=vision["width"],
        vision_heads=vision["heads"],
        vision_layers=vision["layers"],
        vision_inner=int(vision["width"] * vision["mlp_ratio"]),
    )
    return {
        name: ("F32" if name.endswith("router_bias") else "BF16", shape)
        for name, shape in shapes(size).items()
    }


def grouped(name: str) -> str:
    """A flat name in the layout that the NVFP4 repository uses."""
    return rename(name, Layout.GROUPED)


# --- files ------------------------------------------------------------------------


def size_of(dtype: str, shape: tuple[int, ...]) -> int:
    size = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1}[dtype]
    for dimension in shape:
        size *= dimension
    return size


def header(tensors: Tensors) -> bytes:
    """The header of a safetensors file with these tensors in this order."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, (dtype, shape) in tensors.items():
        end = position + size_of(dtype, shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


def write_shard(path: Path, tensors: Tensors) -> None:
    """A safetensors file of the right size whose tensors are a hole: it takes no disk."""
    start = header(tensors)
    path.write_bytes(start)
    os.truncate(path, len(start) + sum(size_of(*tensor) for tensor in tensors.values()))


def holes_take_no_disk(folder: Path) -> bool:
    """The file system has sparse files."""
    path = folder / "hole"
    path.touch()
    os.truncate(path, 64 << 20)
    allocated = path.stat().st_blocks * 512
    path.unlink()
    return allocated < 1 << 20


@dataclass
class ModelFolder:
    """What goes into a folder; a test changes one thing and writes it."""

    config: dict[str, Any] = field(default_factory=small_config)
    tensors: Tensors = field(default_factory=dict)
    shards: int = 3
    code: str | None = CODE
    tokenizer: dict[str, Any] = field(
        default_factory=lambda: {
            "tokenizer_class": "LlamaTokenizerFast",
            "chat_template": "{{ messages }}",
            "added_tokens_decoder": {"128001": {"content": "<im_patch>"}},
        }
    )
    others: dict[str, str] = field(
        default_factory=lambda: {"tokenizer.json": "{}", "generation_config.json": '{"temperature": 1.0}'}
    )

    def __post_init__(self) -> None:
        self.tensors = self.tensors or tensors_of(self.config)

    def shard_name(self, number: int) -> str:
        """The name of the n-th shard, from 1."""
        return f"model-{number:05}.safetensors"

    def parts(self) -> dict[str, Tensors]:
        """The tensors of each shard: each takes every n-th tensor."""
        items = list(self.tensors.items())
        return {self.shard_name(n + 1): dict(items[n :: self.shards]) for n in range(self.shards)}

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        parts = self.parts()
        for name, part in parts.items():
            write_shard(folder / name, part)
        write_json(folder / INDEX, self.index(parts))
        write_json(folder / "config.json", self.config)
        write_json(folder / "tokenizer_config.json", self.tokenizer)
        if self.code is not None:
            (folder / CODE_FILE).write_text(self.code)
        for name, text in self.others.items():
            (folder / name).write_text(text)
        return folder

    def index(self, parts: Mapping[str, Tensors]) -> dict[str, Any]:
        total = sum(size_of(*tensor) for part in parts.values() for tensor in part.values())
        weight_map = {name: shard for shard, part in parts.items() for name in part}
        return {"metadata": {"total_size": total}, "weight_map": weight_map}


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))
