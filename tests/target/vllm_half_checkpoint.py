# SPDX-License-Identifier: Apache-2.0
"""A Step-3.7 model folder in a few hundred kilobytes, and the names of the published one.

The names and shapes of the tensors follow from a `Size`; the tiny one is written with
random float32 weights, with the tokenizer and the remote configuration code beside it.
Everything is written by the standard library alone: no code under test takes part.
"""

from __future__ import annotations

import json
import random
import struct
from array import array
from dataclasses import dataclass
from enum import Enum
from math import prod
from pathlib import Path

ARCHITECTURE = "Step3p7ForConditionalGeneration"
FULL, SLIDING = "full_attention", "sliding_attention"

# vLLM pads the text embedding to a multiple of 64 rows. <im_patch> is the first id behind
# 320 of them, so that it can lie outside of the table too, and not only of the vocabulary.
SPECIAL_TOKENS = (
    "<|begin|>",
    "<|end|>",
    "<|im_start|>",
    "<|im_end|>",
    "<im_start>",
    "<im_end>",
    "<patch_start>",
    "<patch_end>",
    "<patch_newline>",
    *(f"<reserved_{index}>" for index in range(55)),
    "<im_patch>",
)
TOKEN_IDS = {token: 256 + index for index, token in enumerate(SPECIAL_TOKENS)}
IMAGE_TOKEN = TOKEN_IDS["<im_patch>"]
TOKENS = IMAGE_TOKEN + 1
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)

Shape = tuple[int, ...]


class Layout(Enum):
    """How a checkpoint names its tensors."""

    FLAT = "flat"
    GROUPED = "grouped"


@dataclass(frozen=True)
class Size:
    """What decides the names and shapes. Layers: first the dense ones, then MoE, then MTP (dense again)."""

    vocabulary: int
    hidden: int
    dense_layers: int
    moe_layers: int
    mtp_layers: int
    intermediate: int
    heads: int
    sliding_heads: int
    groups: int
    head_dim: int
    experts: int
    expert_width: int
    vision_width: int
    vision_heads: int
    vision_layers: int
    vision_inner: int
    image_size: int = 728
    patch_size: int = 14

    @property
    def layers(self) -> int:
        return self.dense_layers + self.moe_layers

    @property
    def layer_types(self) -> list[str]:
        return [FULL if index % 4 == 0 else SLIDING for index in range(self.layers + self.mtp_layers)]


# The least that vLLM 0.20.2 runs on a CPU: a head_dim of 32, and one layer of experts
# (Step3p5ForCausalLM asserts that there is one) whose width keeps them off the kernels
# that only some processors have.
TINY = Size(
    vocabulary=TOKENS,
    hidden=64,
    dense_layers=1,
    moe_layers=1,
    mtp_layers=1,
    intermediate=96,
    heads=4,
    sliding_heads=6,
    groups=2,
    head_dim=32,
    experts=4,
    expert_width=24,
    vision_width=32,
    vision_heads=2,
    vision_layers=2,
    vision_inner=64,
)
PUBLISHED = Size(
    vocabulary=128896,
    hidden=4096,
    dense_layers=3,
    moe_layers=42,
    mtp_layers=3,
    intermediate=11264,
    heads=64,
    sliding_heads=96,
    groups=8,
    head_dim=128,
    experts=288,
    expert_width=1280,
    vision_width=1536,
    vision_heads=16,
    vision_layers=47,
    vision_inner=8960,
)


@dataclass(frozen=True)
class Tensor:
    """A float32 tensor, row-major and little-endian."""

    shape: Shape
    content: bytes


def write_model(
    folder: Path, size: Size = TINY, layout: Layout = Layout.FLAT, architecture: str = ARCHITECTURE
) -> None:
    """A whole model folder. With a vocabulary of `IMAGE_TOKEN` or less the image token lies outside it."""
    write_tokenizer(folder)
    write_json(folder / "config.json", config(size) | {"architectures": [architecture]})
    (folder / "configuration_step3p7.py").write_text(REMOTE_CODE, "utf-8")
    renamed = {rename(name, layout): tensor for name, tensor in weights(size).items()}
    write_safetensors(folder / "model.safetensors", renamed)


def rename(flat: str, layout: Layout) -> str:
    """The name that a tensor of the flat layout has in another one."""
    if layout is Layout.FLAT or flat.startswith("lm_head"):
        return flat
    if flat.startswith(("vision_model.", "vit_large_projector.")):
        return f"model.{flat}"
    return flat.replace("model.", "model.language_model.", 1)


def weights(size: Size) -> dict[str, Tensor]:
    """Every tensor by its flat name. What a tensor holds follows from its name alone, row by row."""
    return {name: Tensor(shape, random_floats(name, shape)) for name, shape in shapes(size).items()}


def random_floats(name: str, shape: Shape) -> bytes:
    """Values in (-0.5, 0.5)."""
    source = random.Random(name)
    return array("f", (source.random() - 0.5 for _ in range(prod(shape)))).tobytes()


def shapes(size: Size) -> dict[str, Shape]:
    """Name and shape of every tensor, flat layout."""
    found: dict[str, Shape] = {
        "model.embed_tokens.weight": (size.vocabulary, size.hidden),
        "model.norm.weight": (size.hidden,),
        "lm_head.weight": (size.vocabulary, size.hidden),
        "vit_large_projector.weight": (size.hidden, 4 * size.vision_width),
    }
    for index, kind in enumerate(size.layer_types):
        layer = f"model.layers.{index}"
        found |= attention(layer, kind, size)
        if size.dense_layers <= index < size.layers:
            found |= experts(layer, size)
        else:
            found |= gated_mlp(f"{layer}.mlp", size.intermediate, size.hidden)
        if index >= size.layers:
            found |= mtp_extras(layer, size)
    return found | vision_tower("vision_model", size)


def attention(layer: str, kind: str, size: Size) -> dict[str, Shape]:
    heads = size.heads if kind == FULL else size.sliding_heads
    hidden, prefix = size.hidden, f"{layer}.self_attn"
    return {
        f"{layer}.input_layernorm.weight": (hidden,),
        f"{layer}.post_attention_layernorm.weight": (hidden,),
        f"{prefix}.q_proj.weight": (heads * size.head_dim, hidden),
        f"{prefix}.k_proj.weight": (size.groups * size.head_dim, hidden),
        f"{prefix}.v_proj.weight": (size.groups * size.head_dim, hidden),
        f"{prefix}.o_proj.weight": (hidden, heads * size.head_dim),
        f"{prefix}.g_proj.weight": (heads, hidden),
        f"{prefix}.q_norm.weight": (size.head_dim,),
        f"{prefix}.k_norm.weight": (size.head_dim,),
    }


def gated_mlp(prefix: str, width: int, hidden: int) -> dict[str, Shape]:
    return {
        f"{prefix}.gate_proj.weight": (width, hidden),
        f"{prefix}.up_proj.weight": (width, hidden),
        f"{prefix}.down_proj.weight": (hidden, width),
    }


def experts(layer: str, size: Size) -> dict[str, Shape]:
    """The routed experts of one layer, packed, and the shared one, which lies at the layer itself."""
    routed = {
        f"{layer}.moe.gate.weight": (size.experts, size.hidden),
        f"{layer}.moe.router_bias": (size.experts,),
        f"{layer}.moe.gate_proj.weight": (size.experts, size.expert_width, size.hidden),
        f"{layer}.moe.up_proj.weight": (size.experts, size.expert_width, size.hidden),
        f"{layer}.moe.down_proj.weight": (size.experts, size.hidden, size.expert_width),
    }
    return routed | gated_mlp(f"{layer}.share_expert", size.expert_width, size.hidden)


def mtp_extras(layer: str, size: Size) -> dict[str, Shape]:
    """What only a layer for speculative decoding has: the model itself leaves all of that layer out."""
    return {
        f"{layer}.enorm.weight": (size.hidden,),
        f"{layer}.hnorm.weight": (size.hidden,),
        f"{layer}.eh_proj.weight": (size.hidden, 2 * size.hidden),
        f"{layer}.transformer.shared_head.norm.weight": (size.hidden,),
        f"{layer}.transformer.shared_head.output.weight": (size.vocabulary, size.hidden),
    }


def vision_tower(prefix: str, size: Size) -> dict[str, Shape]:
    width, grid = size.vision_width, size.image_size // size.patch_size
    found: dict[str, Shape] = {
        f"{prefix}.conv1.weight": (width, 3, size.patch_size, size.patch_size),
        f"{prefix}.positional_embedding": (grid * grid, width),
        f"{prefix}.ln_pre.weight": (width,),
        f"{prefix}.ln_pre.bias": (width,),
        f"{prefix}.vit_downsampler1.weight": (2 * width, width, 3, 3),
        f"{prefix}.vit_downsampler1.bias": (2 * width,),
        f"{prefix}.vit_downsampler2.weight": (4 * width, 2 * width, 3, 3),
        f"{prefix}.vit_downsampler2.bias": (4 * width,),
    }
    for index in range(size.vision_layers):
        found |= vision_block(f"{prefix}.transformer.resblocks.{index}", width, size.vision_inner)
    return found


def vision_block(prefix: str, width: int, inner: int) -> dict[str, Shape]:
    return {
        f"{prefix}.attn.in_proj_weight": (3 * width, width),
        f"{prefix}.attn.in_proj_bias": (3 * width,),
        f"{prefix}.attn.out_proj.weight": (width, width),
        f"{prefix}.attn.out_proj.bias": (width,),
        f"{prefix}.mlp.c_fc.weight": (inner, width),
        f"{prefix}.mlp.c_fc.bias": (inner,),
        f"{prefix}.mlp.c_proj.weight": (width, inner),
        f"{prefix}.mlp.c_proj.bias": (width,),
        f"{prefix}.ln_1.weight": (width,),
        f"{prefix}.ln_1.bias": (width,),
        f"{prefix}.ln_2.weight": (width,),
        f"{prefix}.ln_2.bias": (width,),
        f"{prefix}.ls_1.gamma": (width,),
        f"{prefix}.ls_2.gamma": (width,),
    }


def write_safetensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Format: eight bytes of length, a JSON header with offsets, the contents one after the other."""
    header: dict[str, object] = {}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + len(tensor.content)
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        file.writelines(tensor.content for tensor in tensors.values())


def config(size: Size) -> dict[str, object]:
    """``config.json``, with the fields of the published one."""
    return {
        "auto_map": {"AutoConfig": "configuration_step3p7.Step3p7Config"},
        "model_type": "step3p7",
        "dtype": "float32",
        "image_token_id": IMAGE_TOKEN,
        "understand_projector_stride": 2,
        "projector_bias": False,
        "tie_word_embeddings": False,
        "vision_config": vision_config(size),
        "text_config": text_config(size) | rotary_config(size) | expert_config(size),
    }


def vision_config(size: Size) -> dict[str, object]:
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
        "output_dim": None,
    }


def text_config(size: Size) -> dict[str, object]:
    return {
        "architectures": ["Step3p5ForCausalLM"],
        "model_type": "step3p5",
        "dtype": "float32",
        "hidden_size": size.hidden,
        "intermediate_size": size.intermediate,
        "num_hidden_layers": size.layers,
        "num_nextn_predict_layers": size.mtp_layers,
        "num_attention_heads": size.heads,
        "num_attention_groups": size.groups,
        "head_dim": size.head_dim,
        "attention_other_setting": {
            "attention_type": SLIDING,
            "num_attention_heads": size.sliding_heads,
            "num_attention_groups": size.groups,
            "head_dim": size.head_dim,
        },
        "layer_types": size.layer_types,
        "sliding_window": 64,
        "use_head_wise_attn_gate": True,
        "att_impl_type": "GQA",
        "vocab_size": size.vocabulary,
        "rms_norm_eps": 1e-5,
        "bos_token_id": TOKEN_IDS["<|begin|>"],
        "eos_token_id": [TOKEN_IDS["<|end|>"], TOKEN_IDS["<|im_end|>"]],
        "tie_word_embeddings": False,
    }


def rotary_config(size: Size) -> dict[str, object]:
    return {
        "max_position_embeddings": 4096,
        "rope_theta": [5e6 if kind == FULL else 1e4 for kind in size.layer_types],
        "partial_rotary_factors": [0.5 if kind == FULL else 1.0 for kind in size.layer_types],
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 2.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 32.0,
            "original_max_position_embeddings": 2048,
        },
        "yarn_only_types": [FULL],
    }


def expert_config(size: Size) -> dict[str, object]:
    return {
        "use_moe": True,
        "moe_layers_enum": ",".join(str(index) for index in range(size.dense_layers, size.layers)),
        "moe_num_experts": size.experts,
        "moe_top_k": 2,
        "moe_intermediate_size": size.expert_width,
        "share_expert_dim": size.expert_width,
        "moe_router_activation": "sigmoid",
        "moe_router_scaling_factor": 3.0,
        "norm_expert_weight": True,
        "need_fp32_gate": True,
        "use_moe_router_bias": True,
        "swiglu_limits": [0.0 for _ in size.layer_types],
        "swiglu_limits_shared": [0.0 for _ in size.layer_types],
    }


REMOTE_CODE = '''\
"""Configuration classes of a model folder: plain holders of what config.json says."""

from transformers import PretrainedConfig


class VisionConfig(PretrainedConfig):
    model_type = "perception_encoder"


class TextConfig(PretrainedConfig):
    model_type = "step3p5"

    def __init__(self, **fields):
        # transformers wants one type a layer, config.json counts the MTP layers too
        fields["layer_types"] = fields.get("layer_types", [])[: fields.get("num_hidden_layers")]
        for name, value in fields.items():
            setattr(self, name, value)  # before the base class looks at the rotary ones
        super().__init__(**fields)


class Step3p7Config(PretrainedConfig):
    model_type = "step3p7"
    sub_configs = {"vision_config": VisionConfig, "text_config": TextConfig}

    def __init__(self, vision_config=None, text_config=None, **fields):
        self.vision_config = VisionConfig(**(vision_config or {}))
        self.text_config = TextConfig(**(text_config or {}))
        super().__init__(**fields)
'''


def write_tokenizer(folder: Path, model_type: str = "step3p7") -> None:
    """The files of a tokenizer, and a config.json of no more than the model type.

    Byte-level BPE under the class name that does not fit, as the hub has it. Without
    merges, the ids of a text are the bytes of its UTF-8, and those of `TOKEN_IDS`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    vocabulary = {character: byte for byte, character in enumerate(byte_characters())}
    plain = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    write_json(
        folder / "tokenizer.json",
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": index, "content": token} | plain for token, index in TOKEN_IDS.items()],
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": None,
            "decoder": byte_level,
            "model": {"type": "BPE", "vocab": vocabulary | TOKEN_IDS, "merges": []},
        },
    )
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "LlamaTokenizerFast",
            "bos_token": "<|begin|>",
            "eos_token": "<|end|>",
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
        },
    )
    write_json(folder / "config.json", {"model_type": model_type})


def byte_characters() -> list[str]:
    """The printable stand-ins of the 256 bytes in a byte-level vocabulary (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), "utf-8")
