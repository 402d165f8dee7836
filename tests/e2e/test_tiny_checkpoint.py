# SPDX-License-Identifier: Apache-2.0
"""The tiny checkpoint: what is in the folder, and that its weights put every limit to the test."""

from __future__ import annotations

import filecmp
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoTokenizer
from transformers.tokenization_utils_tokenizers import TokenizersBackend

from target.vllm_half_checkpoint import Layout
from tiny import reference as reference_module
from tiny.checkpoint import main, write_checkpoint
from tiny.conversations import CHINESE, LONG_CHINESE, picture
from tiny.pictures import look_at
from tiny.reference import Reference, read_weights

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "查询天气",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        },
    },
}


@pytest.fixture(autouse=True)
def modules_of_this_test_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """transformers copies a checkpoint's code to a cache below the home folder before it runs it."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))


def load(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text("utf-8"))


# --- the folder ---


def test_the_same_seed_gives_the_same_bytes_and_another_other_weights(
    flat_model: Path, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path / "again", seed=0)
    write_checkpoint(tmp_path / "other", seed=1)

    names = sorted(file.name for file in flat_model.iterdir())
    same, _, _ = filecmp.cmpfiles(flat_model, tmp_path / "again", names, shallow=False)
    _, different, _ = filecmp.cmpfiles(flat_model, tmp_path / "other", names, shallow=False)

    assert sorted(same) == names
    assert sorted(different) == [name for name in names if name.endswith(".safetensors")]


def test_both_layouts_hold_the_same_tensors_under_other_names(flat_model: Path, grouped_model: Path) -> None:
    flat, grouped = read_weights(flat_model), read_weights(grouped_model)
    names = [
        set(load(folder, "model.safetensors.index.json")["weight_map"])
        for folder in (flat_model, grouped_model)
    ]

    assert names[0] & names[1] == {"lm_head.weight"}
    assert {name.split(".")[1] for name in names[1]} >= {
        "language_model",
        "vision_model",
        "vit_large_projector",
    }
    assert flat.keys() == grouped.keys()
    assert all(torch.equal(tensor, grouped[name]) for name, tensor in flat.items())


def test_the_index_names_every_shard_and_every_tensor(flat_model: Path) -> None:
    index = load(flat_model, "model.safetensors.index.json")
    found: dict[str, str] = {}
    size = 0
    for shard in sorted(flat_model.glob("*.safetensors")):
        with safe_open(shard, "pt") as file:
            found |= dict.fromkeys(file.keys(), shard.name)
            size += sum(file.get_tensor(name).nbytes for name in file.keys())  # noqa: SIM118

    assert index == {"metadata": {"total_size": size}, "weight_map": found}
    assert len(set(found.values())) > 1
    assert all(shard.startswith("model-0000") for shard in found.values())


def test_all_is_bfloat16_but_the_bias_of_the_router(flat_model: Path) -> None:
    dtypes: dict[str, Any] = {}
    for shard in flat_model.glob("*.safetensors"):
        with safe_open(shard, "pt") as file:
            dtypes |= {name: file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118

    assert {name for name, dtype in dtypes.items() if dtype != torch.bfloat16} == {
        f"model.layers.{layer}.moe.router_bias" for layer in (2, 3, 4)
    }


def test_it_is_a_few_megabytes_that_anybody_may_read(flat_model: Path) -> None:
    files = list(flat_model.iterdir())

    assert sum(file.stat().st_size for file in files) < 4_000_000
    assert all(file.stat().st_mode & 0o044 == 0o044 for file in files)


def test_a_folder_that_holds_something_is_left_alone(
    flat_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {file: file.stat().st_mtime_ns for file in flat_model.iterdir()}

    code = main([str(flat_model)])

    assert code == 1
    assert "is not empty" in capsys.readouterr().err
    assert {file: file.stat().st_mtime_ns for file in flat_model.iterdir()} == before


def test_the_command_line_chooses_seed_and_layout(grouped_model: Path, tmp_path: Path) -> None:
    assert main([str(tmp_path / "out"), "--seed", "0", "--layout", Layout.GROUPED.value]) == 0

    shards = [file.name for file in grouped_model.glob("*.safetensors")]
    assert filecmp.cmpfiles(grouped_model, tmp_path / "out", shards, shallow=False)[0] == shards


# --- config.json ---


def test_its_own_code_reads_the_config(flat_model: Path) -> None:
    written = load(flat_model, "config.json")

    config = AutoConfig.from_pretrained(flat_model, trust_remote_code=True)

    assert type(config).__name__ == "Step3p7Config"
    assert config.image_token_id == written["image_token_id"]
    assert config.vision_config.width == written["vision_config"]["width"]
    for name in (
        "swiglu_limits",
        "swiglu_limits_shared",
        "rope_theta",
        "attention_other_setting",
        "moe_layers_enum",
    ):
        assert getattr(config.text_config, name) == written["text_config"][name], name


def test_every_feature_of_the_published_model_is_on(flat_model: Path) -> None:
    text = load(flat_model, "config.json")["text_config"]
    layers, listed = text["num_hidden_layers"], text["num_hidden_layers"] + text["num_nextn_predict_layers"]
    lists = ("layer_types", "rope_theta", "partial_rotary_factors", "swiglu_limits", "swiglu_limits_shared")

    assert (layers, listed) == (5, 8)
    assert all(len(text[name]) == listed for name in lists)
    assert set(text["layer_types"][:layers]) == {"full_attention", "sliding_attention"}
    assert text["attention_other_setting"]["num_attention_heads"] != text["num_attention_heads"]
    assert text["use_head_wise_attn_gate"]
    assert set(text["partial_rotary_factors"]) == {0.5, 1.0}
    assert text["rope_scaling"]["rope_type"] == "llama3"
    assert text["yarn_only_types"] == ["full_attention"]
    assert text["moe_layers_enum"] == "2,3,4"
    assert text["swiglu_limits"] == [0, 0, 0, 7, 7, 0, 0, 0]
    assert text["swiglu_limits_shared"] == [0, 0, 0, 16, 16, 0, 0, 0]


# --- tokenizer and chat template ---


@pytest.fixture(scope="module")
def tokenizer(flat_model: Path) -> Any:
    """As the patched vLLM loads it."""
    return TokenizersBackend.from_pretrained(flat_model)


@pytest.mark.parametrize(
    "text", [CHINESE, LONG_CHINESE, "龘 😀\t\r\n  x", "def f(x):\n    return x + 12345\n"]
)
def test_text_comes_back_as_it_was(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_chinese_words_are_tokens(tokenizer: Any) -> None:
    """The vocabulary is a trained one: a long question takes far fewer tokens than bytes."""
    assert len(LONG_CHINESE) / 2 < len(tokenizer.encode(LONG_CHINESE)) < len(LONG_CHINESE.encode()) / 2


def test_the_class_that_the_metadata_names_loses_the_chinese(flat_model: Path, tokenizer: Any) -> None:
    assert load(flat_model, "tokenizer_config.json")["tokenizer_class"] == "LlamaTokenizerFast"

    named = AutoTokenizer.from_pretrained(flat_model, trust_remote_code=True)

    assert type(named).__name__.startswith("LlamaTokenizer")
    assert len(named.encode(LONG_CHINESE)) < len(tokenizer.encode(LONG_CHINESE)) / 4


def test_ids_lie_as_in_the_published_vocabulary(flat_model: Path, tokenizer: Any) -> None:
    ids = tokenizer.get_vocab()
    first = ids["<im_start>"]
    config = load(flat_model, "config.json")

    assert (ids["<im_patch>"] - first, ids["<|im_end|>"] - first) == (1, 7)  # 128001 and 128007 of 128000
    assert config["image_token_id"] == ids["<im_patch>"]
    assert config["text_config"]["eos_token_id"] == [1, 2, ids["<|im_end|>"]]
    assert load(flat_model, "generation_config.json")["eos_token_id"] == [1, 2, ids["<|im_end|>"]]
    assert sorted(ids.values()) == list(range(config["text_config"]["vocab_size"]))


@pytest.mark.parametrize("token", ["<think>", "</think>", "<tool_call>", "</tool_call>"])
def test_what_the_parsers_look_for_is_one_token_that_survives_decoding(tokenizer: Any, token: str) -> None:
    ids = tokenizer.encode(token)

    assert len(ids) == 1
    assert tokenizer.decode(ids, skip_special_tokens=True) == token


def test_a_turn_of_the_model_opens_with_think(tokenizer: Any) -> None:
    assert rendered(tokenizer, [{"role": "user", "content": "你好"}]) == (
        "<|im_start|>user\n你好<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )


@pytest.mark.parametrize("effort", ["low", "medium", "high"])
def test_a_reasoning_effort_is_part_of_the_prompt(tokenizer: Any, effort: str) -> None:
    prompt = rendered(tokenizer, [{"role": "user", "content": "你好"}], reasoning_effort=effort)

    assert prompt.startswith(f"<|im_start|>system\nReasoning effort: {effort}\n<|im_end|>\n")


def test_a_picture_is_one_placeholder(tokenizer: Any) -> None:
    content = [{"type": "image"}, {"type": "text", "text": "什么颜色？"}]

    assert "<|im_start|>user\n<im_patch>什么颜色？<|im_end|>" in rendered(
        tokenizer, [{"role": "user", "content": content}]
    )


def test_tools_and_what_came_of_them_are_part_of_the_prompt(tokenizer: Any) -> None:
    prompt = rendered(tokenizer, conversation_with_a_call(), tools=[WEATHER])

    assert json.dumps(WEATHER, ensure_ascii=False) in prompt
    assert "<think>\n先查天气。\n</think>\n" in prompt
    assert "<|im_start|>tool\n<tool_response>\n晴\n</tool_response><|im_end|>\n" in prompt


def test_vllms_parser_reads_a_call_as_the_template_writes_it(tokenizer: Any) -> None:
    parsers = pytest.importorskip("vllm.tool_parsers.step3p5_tool_parser")
    protocol = pytest.importorskip("vllm.entrypoints.openai.chat_completion.protocol")
    request = protocol.ChatCompletionRequest(model="m", messages=[], tools=[WEATHER])
    prompt = rendered(tokenizer, conversation_with_a_call(), tools=[WEATHER])
    written = prompt.split("</think>\n")[1].split("<|im_end|>")[0]

    parser = parsers.Step3p5ToolParser(tokenizer, request.tools)
    [call] = parser.extract_tool_calls(written, request).tool_calls

    assert call.function.name == "weather"
    assert json.loads(call.function.arguments) == {"city": "北京", "days": 3}


def conversation_with_a_call() -> list[dict[str, Any]]:
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "北京", "days": 3}}}
    return [
        {"role": "user", "content": "北京三天的天气怎么样？"},
        {"role": "assistant", "reasoning_content": "先查天气。", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "晴"},
    ]


def rendered(tokenizer: Any, messages: list[dict[str, Any]], **options: Any) -> str:
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options))


# --- pictures ---


@pytest.mark.parametrize(
    ("size", "tokens"),
    [((224, 224), 171), ((1024, 768), 504), ((1920, 1080), 836), ((3024, 3024), 3164), ((4032, 4032), 3164)],
    ids=str,
)
def test_a_picture_costs_what_it_costs_the_published_model(size: tuple[int, int], tokens: int) -> None:
    assert len(look_at(picture(*size)).placeholders) == tokens


# --- weights ---


@pytest.mark.parametrize("limit", [7.0, 16.0], ids=["routed", "shared"])
def test_the_limits_change_a_fair_share_of_the_values(
    flat_model: Path,
    tokenizer: Any,
    monkeypatch: pytest.MonkeyPatch,
    note: Callable[[str], None],
    limit: float,
) -> None:
    ids = tokenizer.encode(rendered(tokenizer, [{"role": "user", "content": LONG_CHINESE}]))
    touched = note_clamped(monkeypatch, limit)

    Reference(flat_model).log_probabilities(ids)

    share = float(torch.cat(touched).double().mean())
    note(f"tiny model, limit {limit:g}: a factor is clamped in {share:.1%} of the products")
    assert 0.3 < share < 0.7


def note_clamped(monkeypatch: pytest.MonkeyPatch, limit: float) -> list[torch.Tensor]:
    """For each product of a gate and an up value under this limit: is one of them clamped?"""
    touched: list[torch.Tensor] = []
    original: Callable[..., torch.Tensor] = reference_module.gated

    def noting(gate: torch.Tensor, up: torch.Tensor, of_layer: float) -> torch.Tensor:
        if of_layer == limit:
            touched.append(((gate * gate.sigmoid() > limit) | (up.abs() > limit)).flatten())
        return original(gate, up, of_layer)

    monkeypatch.setattr(reference_module, "gated", noting)
    return touched


def test_nothing_is_so_large_that_half_precision_overflows(flat_model: Path) -> None:
    largest = max(float(tensor.abs().max()) for tensor in read_weights(flat_model).values())

    assert math.isfinite(largest)
    assert largest < 100
