# SPDX-License-Identifier: Apache-2.0
"""The kit against a careful person with an editor: the same answers, token by token.

vLLM's three files are written by hand into a pristine copy, as the public guides have them and
with their slips corrected. (vllm-ascend's two do not run on a CPU; `test_tiny_experts` holds them
against the reference.)
"""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cases import QUESTIONS
from e2e.roots import ENTRY, MODEL, MODELS, TOKENIZERS, edit, replace
from target.conftest import copy_root
from tiny.engine import Reply
from tiny.engine_process import ask_engine
from tiny.launch import environment

pytest_plugins = ["e2e.server_fixtures"]

HAND_WRITTEN = Path(__file__).resolve().parent / "by_hand" / "step3p7.py"
REGISTERED = "_SPECULATIVE_DECODING_MODELS = {\n"
"""Where a public guide puts it; it works there, too, for all the dictionaries are merged."""
LOADED = "    tokenizer = tokenizer_cls_.from_pretrained(tokenizer_name, *args, **kwargs)\n"


@pytest.fixture(scope="module")
def hand_made_root(pristine_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = copy_root(pristine_root, tmp_path_factory.mktemp("by-hand") / "root")
    replace(root / MODEL, HAND_WRITTEN.read_text("utf-8"))
    name = "Step3p7ForConditionalGeneration"
    edit(root / MODELS, REGISTERED, f'{REGISTERED}    "{name}": ("step3p7", "{name}"),\n')
    edit(root / TOKENIZERS, *ENTRY)
    wrapped = (
        "    if model_type in _MODEL_TYPES_WITH_INCORRECT_TOKENIZER_CLASS:\n"
        "        from vllm.tokenizers.hf import get_cached_tokenizer\n"
        "        tokenizer = get_cached_tokenizer(tokenizer)\n"
    )
    edit(root / TOKENIZERS, LOADED, LOADED + wrapped)
    return root


@pytest.fixture(scope="module")
def by_hand(
    sandbox_python: Path, hand_made_root: Path, flat_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Reply]:
    scratch = tmp_path_factory.mktemp("by-hand")
    settings = environment(scratch, hand_made_root)
    return ask_engine(sandbox_python, settings, flat_model, QUESTIONS, scratch).replies


def test_none_of_the_hand_made_files_is_the_kits(hand_made_root: Path, patched_root: Path) -> None:
    for file in (MODEL, MODELS, TOKENIZERS):
        assert (hand_made_root / file).read_bytes() != (patched_root / file).read_bytes()


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_kit_says_what_the_hand_made_edits_say(
    by_hand: dict[str, Reply], one_process: dict[str, Reply], name: str
) -> None:
    assert one_process[name].prompt == by_hand[name].prompt
    assert one_process[name].answer == by_hand[name].answer
    assert one_process[name] == by_hand[name]  # and to the last bit of every log-probability
