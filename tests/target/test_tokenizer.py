# SPDX-License-Identifier: Apache-2.0
"""The tokenizer half, on the real vLLM and transformers: pristine, half applied, and patched.

The trial tokenizer has no merges, so the right ids of a text are the bytes of its UTF-8.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from target.vllm_half_checkpoint import SPECIAL_TOKENS, TOKEN_IDS, write_model, write_tokenizer
from target.vllm_half_process import Target

pytest_plugins = ["target.vllm_half_fixtures"]

TEXT = "你好，世界！ two  spaces\nand a new line"


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    write_model(folder)
    return str(folder)


def test_the_published_vllm_loses_chinese_text_spaces_and_newlines(pristine_vllm: Target, model: str) -> None:
    assert pristine_vllm.ask("tokenizer", folder=model)["class"] == "CachedLlamaTokenizer"
    assert pristine_vllm.ask("round_trip", folder=model, text=TEXT)["text"] == "twospacesandanewline"
    assert pristine_vllm.ask("round_trip", folder=model, text="你好，世界！\n")["ids"] == []


def test_a_long_chinese_question_becomes_its_template_tokens_alone(pristine_vllm: Target, model: str) -> None:
    question = "<|im_start|>" + "请用中文详细介绍一下长江的源头" * 20 + "<|im_end|>"

    found = pristine_vllm.ask("round_trip", folder=model, text=question)

    assert found["ids"] == [TOKEN_IDS["<|im_start|>"], TOKEN_IDS["<|im_end|>"]]


def test_the_entry_without_the_wrapper_keeps_the_text_but_lacks_what_each_chat_reads(
    half_patched_vllm: Target, model: str
) -> None:
    found = half_patched_vllm.ask("tokenizer", folder=model)

    assert half_patched_vllm.ask("round_trip", folder=model, text=TEXT)["text"] == TEXT
    assert found["class"] == "TokenizersBackend"
    assert found["max_chars_per_token"] is None
    assert found["max_token_id"] is None


@settings(max_examples=300, deadline=None)
@given(text=st.text())
@example(text=TEXT)
@example(text="  leading and trailing \t\r\n ")
@example(text="\x00 \u200b\ufeff \U0001f469\u200d\U0001f680 e\u0301 \uffff")
@example(text="▁ Ġ Ċ <0x0A> 你 'll n't .")
def test_any_text_comes_back_as_it_went_in(patched_vllm: Target, model: str, text: str) -> None:
    assume(not any(token in text for token in SPECIAL_TOKENS))

    found = patched_vllm.ask("round_trip", folder=model, text=text)

    assert found["ids"] == list(text.encode())
    assert found["text"] == text


@settings(max_examples=100, deadline=None)
@given(parts=st.lists(st.text() | st.sampled_from(SPECIAL_TOKENS), max_size=8))
def test_special_tokens_are_one_token_each_among_any_text(
    patched_vllm: Target, model: str, parts: list[str]
) -> None:
    text = "".join(parts)
    pieces = re.split("(" + "|".join(map(re.escape, SPECIAL_TOKENS)) + ")", text)
    expected = [
        index for piece in pieces for index in ([TOKEN_IDS[piece]] if piece in TOKEN_IDS else piece.encode())
    ]

    found = patched_vllm.ask("round_trip", folder=model, text=text)

    assert found["ids"] == expected
    assert found["text"] == text


def test_the_tokenizer_is_wrapped_once_and_has_what_each_chat_reads(patched_vllm: Target, model: str) -> None:
    found = patched_vllm.ask("tokenizer", folder=model)

    assert found["wrappers"] == ["CachedTokenizersBackend"]
    assert found["max_chars_per_token"] == max(map(len, SPECIAL_TOKENS))
    assert found["max_token_id"] >= max(TOKEN_IDS.values())


def test_the_wrapped_tokenizer_survives_pickling(patched_vllm: Target, model: str) -> None:
    before, after = (
        patched_vllm.ask(question, folder=model) for question in ("tokenizer", "unpickled_tokenizer")
    )

    assert after == before
    assert after["ids of 你好"] == list("你好".encode())


def test_a_step3_vl_model_still_keeps_its_text_and_is_wrapped_now_too(
    pristine_vllm: Target, patched_vllm: Target, tmp_path: Path
) -> None:
    write_tokenizer(tmp_path, "step3_vl")
    before, after = (
        target.ask("tokenizer", folder=str(tmp_path)) for target in (pristine_vllm, patched_vllm)
    )

    assert before["wrappers"] == []
    assert after["wrappers"] == ["CachedTokenizersBackend"]
    assert patched_vllm.ask("round_trip", folder=str(tmp_path), text=TEXT)["text"] == TEXT


@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_other_model_types_are_read_as_before(
    pristine_vllm: Target, patched_vllm: Target, tmp_path: Path, model_type: str
) -> None:
    write_tokenizer(tmp_path, model_type)
    before, after = (
        target.ask("tokenizer", folder=str(tmp_path)) for target in (pristine_vllm, patched_vllm)
    )

    assert after == before
    assert len(after["wrappers"]) == 1


def test_without_trust_remote_code_even_the_patched_vllm_reads_the_wrong_class(
    patched_vllm: Target, model: str
) -> None:
    """The model type is known only once the model folder's own code may run."""
    found = patched_vllm.ask("round_trip", folder=model, text=TEXT, trust_remote_code=False)

    assert found["text"] == "twospacesandanewline"
