# SPDX-License-Identifier: Apache-2.0
"""From the names of a checkpoint to the parameters of the model, in both published layouts.

"It loaded" proves nothing: vLLM's text loader passes over a name that it does not know.
So each parameter starts as NaN, and afterwards has to hold the bytes of its tensors.
"""

from __future__ import annotations

import struct
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from target.vllm_half_cases import Case, Serve
from target.vllm_half_checkpoint import PUBLISHED, TINY, Layout, Tensor, rename, shapes, weights
from target.vllm_half_process import Target

pytest_plugins = ["target.vllm_half_fixtures"]

LAYOUTS = [pytest.param(layout, id=layout.value) for layout in Layout]

BLOCK = "vision_model.transformer.resblocks.7"
NAMES = {
    # flat
    "model.embed_tokens.weight": "language_model.model.embed_tokens.weight",
    "model.norm.weight": "language_model.model.norm.weight",
    "model.layers.0.self_attn.q_proj.weight": "language_model.model.layers.0.self_attn.q_proj.weight",
    "model.layers.3.moe.gate_proj.weight": "language_model.model.layers.3.moe.gate_proj.weight",
    "model.layers.3.share_expert.up_proj.weight": "language_model.model.layers.3.share_expert.up_proj.weight",
    "vision_model.conv1.weight": "vision_model.conv1.weight",
    "vision_model.positional_embedding": "vision_model.positional_embedding",
    "vit_large_projector.weight": "vit_large_projector.weight",
    "lm_head.weight": "language_model.lm_head.weight",
    # grouped by part
    "model.language_model.embed_tokens.weight": "language_model.model.embed_tokens.weight",
    "model.language_model.layers.0.mlp.up_proj.weight": "language_model.model.layers.0.mlp.up_proj.weight",
    "model.vision_model.ln_pre.bias": "vision_model.ln_pre.bias",
    "model.vit_large_projector.weight": "vit_large_projector.weight",
    # inside the tower
    f"{BLOCK}.attn.in_proj_weight": f"{BLOCK}.attn.qkv_proj.weight",
    f"{BLOCK}.attn.in_proj_bias": f"{BLOCK}.attn.qkv_proj.bias",
    f"{BLOCK}.attn.out_proj.weight": f"{BLOCK}.attn.out_proj.weight",
    f"model.{BLOCK}.mlp.c_fc.weight": f"{BLOCK}.mlp.fc1.weight",
    f"model.{BLOCK}.mlp.c_proj.bias": f"{BLOCK}.mlp.fc2.bias",
    # whole modules, as the ignore list of a quantisation config names them
    "model.vision_model": "vision_model",
    "vision_model": "vision_model",
    "model.vit_large_projector": "vit_large_projector",
    "vit_large_projector": "vit_large_projector",
    "model.language_model": "language_model.model",
    "model.language_model.layers.0": "language_model.model.layers.0",
    "model.layers.44.moe": "language_model.model.layers.44.moe",
    "model.vision_model*": "vision_model*",
    "lm_head": "language_model.lm_head",
    f"{BLOCK}.mlp.c_fc": f"{BLOCK}.mlp.fc1",
}

COMPONENTS = sorted(
    {part for name in shapes(PUBLISHED) for part in name.split(".")} - {"model", "vision_model"}
)


@pytest.mark.parametrize(("published", "expected"), NAMES.items())
def test_a_published_name_becomes_one_of_vllm(patched_vllm: Target, published: str, expected: str) -> None:
    assert patched_vllm.ask("map_names", names=[published]) == [expected]


def test_the_names_here_are_those_of_the_published_checkpoint() -> None:
    """Its 1471 tensors and 402,730,656,512 bytes are known: bfloat16, the router's bias alone float32."""
    found = shapes(PUBLISHED)
    bytes_each = {name: 4 if name.endswith("router_bias") else 2 for name in found}

    assert len(found) == 1471
    assert sum(bytes_each[name] * prod(shape) for name, shape in found.items()) == 402_730_656_512


def test_both_layouts_of_the_whole_checkpoint_become_the_same_names(patched_vllm: Target) -> None:
    published = list(shapes(PUBLISHED))
    flat, grouped = (
        patched_vllm.ask("map_names", names=[rename(name, layout) for name in published]) for layout in Layout
    )

    assert flat == grouped
    assert len(set(flat)) == len(published)
    assert {name.split(".")[0] for name in flat} == {"language_model", "vision_model", "vit_large_projector"}


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=200, deadline=None)
@given(
    paths=st.sets(st.lists(st.sampled_from(COMPONENTS), min_size=1, max_size=6).map(".".join), max_size=20)
)
def test_no_two_names_of_one_layout_collide(patched_vllm: Target, layout: Layout, paths: set[str]) -> None:
    heads = ("model", "vision_model")
    names = {rename(f"{head}.{path}", layout) for head in heads for path in paths} | {"lm_head.weight"}

    mapped = patched_vllm.ask("map_names", names=sorted(names))

    assert len(set(mapped)) == len(names)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_tensor_reaches_its_parameter_and_every_parameter_is_filled(
    serve: Serve, layout: Layout
) -> None:
    found = serve(Case(layout=layout)).parameters
    expected = expected_parameters(weights(TINY))

    assert sorted(found) == sorted(expected)
    for name, content in found.items():
        # The rows that pad the vocabulary to a multiple of 64 hold zeros.
        assert content[: len(expected[name])] == expected[name], name
        assert not any(content[len(expected[name]) :]), name


def test_both_layouts_give_the_same_answer(serve: Serve) -> None:
    flat, grouped = (serve(Case(layout=layout)) for layout in Layout)

    assert grouped.text == flat.text
    assert grouped.picture == flat.picture


def expected_parameters(checkpoint: dict[str, Tensor]) -> dict[str, bytes]:
    """What the parameters have to hold: vLLM puts q, k, v into one, and gate and up."""
    content = {name: tensor.content for name, tensor in checkpoint.items()}
    text = "language_model.model"
    expected = {
        f"{text}.embed_tokens.weight": content["model.embed_tokens.weight"],
        f"{text}.norm.weight": content["model.norm.weight"],
        "language_model.lm_head.weight": content["lm_head.weight"],
        "vit_large_projector.weight": content["vit_large_projector.weight"],
    }
    for index in (0, 1):
        given, ours = f"model.layers.{index}", f"{text}.layers.{index}"
        qkv = (content[f"{given}.self_attn.{part}_proj.weight"] for part in "qkv")
        expected[f"{ours}.self_attn.qkv_proj.weight"] = b"".join(qkv)
        for part in ("self_attn.o_proj", "self_attn.g_proj", "self_attn.q_norm", "self_attn.k_norm"):
            expected[f"{ours}.{part}.weight"] = content[f"{given}.{part}.weight"]
        for part in ("input_layernorm", "post_attention_layernorm"):
            expected[f"{ours}.{part}.weight"] = content[f"{given}.{part}.weight"]
    expected |= gated_mlp(content, "model.layers.0.mlp", f"{text}.layers.0.mlp")
    expected |= gated_mlp(content, "model.layers.1.share_expert", f"{text}.layers.1.moe.share_expert")
    expected |= experts(checkpoint, "model.layers.1.moe", f"{text}.layers.1.moe")
    return expected | tower(content)


def gated_mlp(content: dict[str, bytes], given: str, ours: str) -> dict[str, bytes]:
    gate_up = content[f"{given}.gate_proj.weight"] + content[f"{given}.up_proj.weight"]
    return {
        f"{ours}.gate_up_proj.weight": gate_up,
        f"{ours}.down_proj.weight": content[f"{given}.down_proj.weight"],
    }


def experts(checkpoint: dict[str, Tensor], given: str, ours: str) -> dict[str, bytes]:
    """Gate and up of the first expert, then of the second, and so on."""
    gates, ups = (by_expert(checkpoint[f"{given}.{part}_proj.weight"]) for part in ("gate", "up"))
    return {
        f"{ours}.gate.weight": checkpoint[f"{given}.gate.weight"].content,
        f"{ours}.router_bias": checkpoint[f"{given}.router_bias"].content,
        f"{ours}.experts.w13_weight": b"".join(gate + up for gate, up in zip(gates, ups, strict=True)),
        f"{ours}.experts.w2_weight": checkpoint[f"{given}.down_proj.weight"].content,
    }


def by_expert(packed: Tensor) -> list[bytes]:
    size = struct.calcsize("f") * prod(packed.shape[1:])
    return [packed.content[start : start + size] for start in range(0, len(packed.content), size)]


def tower(content: dict[str, bytes]) -> dict[str, bytes]:
    """The tower keeps its names, but for those of the fused projection and of the two linear layers."""
    found = {name: tensor for name, tensor in content.items() if name.startswith("vision_model.")}
    for index in range(TINY.vision_layers):
        block = f"vision_model.transformer.resblocks.{index}"
        for kind in ("weight", "bias"):
            found[f"{block}.attn.qkv_proj.{kind}"] = found.pop(f"{block}.attn.in_proj_{kind}")
            found[f"{block}.mlp.fc1.{kind}"] = found.pop(f"{block}.mlp.c_fc.{kind}")
            found[f"{block}.mlp.fc2.{kind}"] = found.pop(f"{block}.mlp.c_proj.{kind}")
    return found
