# SPDX-License-Identifier: Apache-2.0
"""The router's bias in float32, with vllm-ascend's own MoE layer in the model that vLLM builds and loads.

The layer rounds the bias to the model's dtype as it is built. The checkpoint here is one in
which that matters: of two experts the one is ahead by its bias, and behind once it is rounded.
"""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from e2e.folders import Tensors, damaged
from e2e.roots import MODEL, edit
from target.conftest import PROJECT, copy_root
from tiny.ascend_router import Answer, read_answer
from tiny.config import CHOSEN_EXPERTS, TINY
from tiny.launch import TESTS, environment
from tiny.reference import Reference

KEPT_IN_FLOAT32 = "                parameter.data = parameter.data.float()\n"
TIMEOUT_S = 300

BIAS = torch.tensor([0.5018, 0.5, 2.0001, 3.0001, -1.1, -1.2, -1.3, -1.4])
"""In bfloat16 the first two are even. Two others are always chosen, and the last four never."""

SECOND_BY = {0: 0.004, 1: -1.0, 2: 1.0}
"""Token by token the lead of the second expert's logit: too small, none, and enough."""


def make_it_close(tensors: Tensors) -> None:
    gate = torch.zeros(TINY.experts, TINY.hidden, dtype=torch.bfloat16)
    for token, lead in SECOND_BY.items():
        gate[1, token] = lead
    for name in tensors:
        if name.endswith(".moe.gate.weight"):
            tensors[name] = gate.clone()
        if name.endswith(".moe.router_bias"):
            tensors[name] = BIAS.clone()


@pytest.fixture(scope="module")
def close_model(flat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return damaged(flat_model, tmp_path_factory.mktemp("close") / "model", make_it_close)


@pytest.fixture(scope="module")
def answers(
    sandbox_python: Path, patched_root: Path, close_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Answer]:
    """Of the kit's model class, and of one without the line that this is about."""
    without = copy_root(patched_root, tmp_path_factory.mktemp("without") / "root")
    edit(without / MODEL, KEPT_IN_FLOAT32, "                pass\n")

    def run(root: Path) -> Answer:
        return ask_router(sandbox_python, root, close_model, tmp_path_factory.mktemp("router"))

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(("kit", "without"), pool.map(run, (patched_root, without)), strict=True))


def ask_router(python: Path, root: Path, model: Path, scratch: Path) -> Answer:
    answer, log = scratch / "answer.json", scratch / "log"
    settings = environment(scratch, root, plugin=False)
    path = [settings["PYTHONPATH"], str(TESTS), str(PROJECT / "scripts")]
    with log.open("wb") as output:
        run = subprocess.run(
            [str(python), "-P", "-m", "tiny.ascend_router", str(root), str(model), str(answer)],
            cwd=scratch,
            env=settings | {"PYTHONPATH": os.pathsep.join(path)},
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
        )
    assert run.returncode == 0, log.read_text("utf-8", "replace")[-4000:]
    return read_answer(answer)


def expected(model: Path, index: int) -> list[list[int]]:
    _, chosen = Reference(model).route(index, torch.eye(TINY.hidden))
    return [sorted(map(int, experts)) for experts in chosen]


def test_the_loaded_bias_is_the_checkpoints_bit_for_bit(answers: dict[str, Answer]) -> None:
    assert sorted(answers["kit"].layers) == list(range(TINY.dense_layers, TINY.layers))
    for layer in answers["kit"].layers.values():
        assert layer.dtype == "torch.float32"
        assert torch.tensor(layer.bias).equal(BIAS)


def test_the_experts_are_those_of_the_reference(answers: dict[str, Answer], close_model: Path) -> None:
    for index, layer in answers["kit"].layers.items():
        assert layer.chosen == expected(close_model, index)
        assert all(len(set(experts)) == CHOSEN_EXPERTS for experts in layer.chosen)


def test_without_the_line_the_bias_is_rounded_and_others_are_chosen(
    answers: dict[str, Answer], close_model: Path
) -> None:
    """So the two tests above can fail; and this is what vllm-ascend's layer does by itself."""
    for index, layer in answers["without"].layers.items():
        right = expected(close_model, index)
        assert layer.dtype == "torch.bfloat16"
        assert torch.tensor(layer.bias).equal(BIAS.bfloat16().float())
        assert [token for token in SECOND_BY if layer.chosen[token] != right[token]] == [0]


@pytest.mark.parametrize("variant", ["kit", "without"])
def test_the_operator_gets_logits_and_bias_of_one_dtype_as_it_wants_them(
    answers: dict[str, Answer], variant: str
) -> None:
    """float32 with the line and without it: ``select_experts`` widens a rounded bias, too late."""
    assert [layer.asked_with for layer in answers[variant].layers.values()] == [["torch.float32"]] * 3


def test_kit_verify_tells_the_one_from_the_other(answers: dict[str, Answer]) -> None:
    kit, without = (answers[variant].probe for variant in ("kit", "without"))

    assert kit["status"] == "passed"
    assert without["status"] == "failed"
    assert without["detail"].startswith("torch.bfloat16 once the model is built")
