# SPDX-License-Identifier: Apache-2.0
"""The registry entry and the model class, on the real vLLM: known, multimodal, and it answers.

The engine is vLLM's own, on the CPU, with random weights: what is shown is that all parts
are joined (renderer, tokenizer, processor, tower, projector, text model, sampler), not that
the answers are good.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from target.vllm_half_cases import Case, Reply, Serve
from target.vllm_half_checkpoint import ARCHITECTURE, IMAGE_TOKEN, TOKEN_IDS, TOKENS, write_model
from target.vllm_half_process import Raised, Target

pytest_plugins = ["target.vllm_half_fixtures"]

REGISTRY = "vllm/model_executor/models/registry.py"


def test_the_published_registry_does_not_know_the_architecture(pristine_vllm: Target) -> None:
    assert not pristine_vllm.ask("supported")
    assert pristine_vllm.ask("registered_in") == []


def test_the_published_vllm_refuses_the_model_folder_by_name(pristine_vllm: Target, tmp_path: Path) -> None:
    write_model(tmp_path)
    with pytest.raises(Raised, match=rf"Model architectures \['{ARCHITECTURE}'\] are not supported for now"):
        pristine_vllm.ask("resolve", folder=str(tmp_path))


def test_the_patched_registry_has_one_entry_among_the_multimodal_models(
    patched_vllm: Target, patched_root: Path
) -> None:
    assert patched_vllm.ask("supported")
    # _VLLM_MODELS is where the registry merges all its tables.
    assert sorted(patched_vllm.ask("registered_in")) == ["_MULTIMODAL_MODELS", "_VLLM_MODELS"]
    assert (patched_root / REGISTRY).read_text("utf-8").count(f'"{ARCHITECTURE}": (') == 1


def test_the_class_is_a_multimodal_step3_vl_model_that_can_be_split(patched_vllm: Target) -> None:
    found = patched_vllm.ask("model_class")

    assert found["name"] == f"vllm.model_executor.models.step3p7.{ARCHITECTURE}"
    assert "Step3VLForConditionalGeneration" in found["ancestors"]
    assert found["multimodal"]
    assert found["pipeline parallel"]
    assert found["tower in data mode"]


def test_the_class_has_the_picture_processor_of_step3_vl(patched_vllm: Target) -> None:
    found = patched_vllm.ask("model_class")

    assert found["processor"] == "Step3VLMultiModalProcessor"
    assert found["placeholder"] == "<im_patch>"


def test_text_gets_an_answer_with_finite_logits(serve: Serve) -> None:
    assert_answered(serve(Case()).text)


def test_a_picture_gets_an_answer_with_finite_logits(serve: Serve) -> None:
    assert_answered(serve(Case()).picture)


def test_a_picture_of_224_by_224_becomes_171_tokens(serve: Serve) -> None:
    prompt = serve(Case()).picture.prompt

    first, last = prompt.index(TOKEN_IDS["<im_start>"]), prompt.index(TOKEN_IDS["<im_end>"])
    assert prompt[first + 1 : last] == [IMAGE_TOKEN] * 169
    assert IMAGE_TOKEN not in prompt[:first] + prompt[last:]


def test_the_answer_depends_on_what_the_picture_shows(serve: Serve) -> None:
    red, blue = serve(Case()).picture, serve(Case()).other_picture

    assert red.prompt == blue.prompt
    assert red.logits[0] != pytest.approx(blue.logits[0], abs=1e-2)


def test_the_tower_in_data_mode_gives_the_same_answer(serve: Serve) -> None:
    split, whole = serve(Case()), serve(Case(tower_mode="data"))

    assert whole.picture.tokens == split.picture.tokens
    for found, expected in zip(whole.picture.logits, split.picture.logits, strict=True):
        assert found == pytest.approx(expected, abs=1e-4)


def assert_answered(reply: Reply) -> None:
    assert len(reply.tokens) == len(reply.logits) > 0
    for token, logits in zip(reply.tokens, reply.logits, strict=True):
        assert len(logits) == TOKENS
        assert all(map(math.isfinite, logits))
        assert logits[token] == max(logits)
