# SPDX-License-Identifier: Apache-2.0
"""What vLLM 0.20.2 says of a checkpoint with a tensor too many or too few, and what the kit says.

Where vLLM is silent it serves a model with numbers that nobody wrote, so there the kit has to be loud.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from e2e.folders import Damage, Tensors, damaged
from target.conftest import PROJECT, TIMEOUT_S
from tiny.config import TINY
from tiny.conversations import ask
from tiny.engine import Question
from tiny.engine_process import EngineFailed, ask_engine
from tiny.launch import environment

QUESTION = {"text": Question(ask("你好"), tokens=1)}
MOE = "model.layers.3.moe."


@dataclass(frozen=True)
class Silence:
    """``said``: what the kit must say. ``lacking``: the parameters that vLLM leaves unfilled."""

    damage: Damage
    said: str
    lacking: tuple[str, ...]
    refused: bool = False
    """The kit refuses it, though vLLM has filled all that it knows."""


def drop(name: str) -> Damage:
    return lambda tensors: tensors.pop(name)


def add(name: str) -> Damage:
    return lambda tensors: tensors.update({name: torch.ones(4, 4)})


def unpack_all_but_one_expert(tensors: Tensors) -> None:
    """The other published way to hold experts, each by itself; the last is not there."""
    for part in ("gate_proj", "up_proj", "down_proj"):
        packed = tensors.pop(f"{MOE}{part}.weight")
        for expert, weight in enumerate(packed[:-1]):
            tensors[f"{MOE}experts.{expert}.{part}.weight"] = weight.clone()


def drop_one_expert(tensors: Tensors) -> None:
    for part in ("gate_proj", "up_proj", "down_proj"):
        tensors[f"{MOE}{part}.weight"] = tensors[f"{MOE}{part}.weight"][:-1].clone()


def unpack(tensors: Tensors, *parts: str) -> None:
    for part in parts:
        for expert, weight in enumerate(tensors.pop(f"{MOE}{part}.weight")):
            tensors[f"{MOE}experts.{expert}.{part}.weight"] = weight.clone()


def unpack_one_projection(tensors: Tensors) -> None:
    """Whole: what vLLM fills is a slice, and each is there in one layout or the other."""
    unpack(tensors, "up_proj")


def unpack_one_projection_but_one(tensors: Tensors) -> None:
    unpack_one_projection(tensors)
    del tensors[f"{MOE}experts.2.up_proj.weight"]


def add_an_expert(tensors: Tensors) -> None:
    unpack_one_projection(tensors)
    name = f"{MOE}experts.{{}}.up_proj.weight"
    tensors[name.format(TINY.experts)] = tensors[name.format(0)].clone()


def double_an_expert(tensors: Tensors) -> None:
    tensors[f"{MOE}experts.2.up_proj.weight"] = tensors[f"{MOE}up_proj.weight"][2].clone()


def shrink_an_expert(tensors: Tensors) -> None:
    unpack_one_projection(tensors)
    name = f"{MOE}experts.2.up_proj.weight"
    tensors[name] = tensors[name][:-1].clone()


SILENT = {
    "a text tensor too many": Silence(
        add("model.layers.0.self_attn.extra.weight"), "model.layers.0.self_attn.extra.weight", ()
    ),
    "no q_proj": Silence(
        drop("model.layers.1.self_attn.q_proj.weight"),
        "model.layers.1.self_attn.q_proj.weight",
        ("layers.1.self_attn.qkv_proj.weight",),
    ),
    "no moe.up_proj": Silence(
        drop(f"{MOE}up_proj.weight"), f"{MOE}up_proj.weight", ("layers.3.moe.experts.w13_weight",)
    ),
    "one unpacked expert missing": Silence(
        unpack_all_but_one_expert,
        f"{MOE}experts.{TINY.experts - 1}.up_proj.weight",
        ("layers.3.moe.experts.w13_weight", "layers.3.moe.experts.w2_weight"),
    ),
    "one projection unpacked, one expert of it missing": Silence(
        unpack_one_projection_but_one,
        f"{MOE}experts.2.up_proj.weight",
        ("layers.3.moe.experts.w13_weight",),
    ),
    "an expert with a row too few": Silence(
        shrink_an_expert, f"{MOE}experts.2.up_proj.weight in", ("layers.3.moe.experts.w13_weight",)
    ),
    "one projection unpacked": Silence(unpack_one_projection, "this folder can be served", ()),
    "an expert too many": Silence(add_an_expert, f"{MOE}experts.{TINY.experts}.up_proj.weight", ()),
    "a scale without its weight": Silence(
        add(f"{MOE}experts.2.up_proj.weight_scale"), "scales of experts have no weight", (), refused=True
    ),
    "an expert packed and by itself": Silence(
        double_an_expert, f"{MOE}experts.2.up_proj.weight beside", (), refused=True
    ),
}
LOUD = {
    "a vision tensor too many": (add("vision_model.extra.weight"), "no module or parameter named"),
    "a top-level tensor too many": (add("extra.weight"), "no module or parameter named"),
    "no vision tensor": (drop("vision_model.conv1.weight"), "not initialized from checkpoint"),
    "one packed expert missing": (drop_one_expert, "assert loaded_weight.shape[0] == moe_expert_num"),
}


@dataclass(frozen=True)
class Outcome:
    """``unfilled``: the parameters without a value, where the engine came up."""

    model: Path
    came_up: bool
    log: str
    unfilled: tuple[str, ...] = ()


@pytest.fixture(scope="module")
def outcomes(
    sandbox_python: Path, patched_root: Path, flat_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Outcome]:
    """By name of the fault. Two engines at a time: while it starts, each keeps one core busy."""
    damages = {name: fault.damage for name, fault in SILENT.items()} | {
        name: damage for name, (damage, _) in LOUD.items()
    }
    folders = {name: tmp_path_factory.mktemp("damaged") for name in damages}

    def run(name: str) -> Outcome:
        scratch = folders[name]
        model = damaged(flat_model, scratch / "model", damages[name])
        settings, log = environment(scratch, patched_root), scratch / "run" / "log"
        try:
            parameters = ask_engine(sandbox_python, settings, model, QUESTION, log.parent).parameters
        except EngineFailed:
            return Outcome(model, False, log.read_text("utf-8"))
        unfilled = tuple(key for key, value in parameters.items() if value.isnan().any())
        return Outcome(model, True, log.read_text("utf-8"), unfilled)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(damages, pool.map(run, damages), strict=True))


@pytest.mark.parametrize("name", SILENT)
def test_vllm_serves_it_without_a_word_and_the_kit_does_not(outcomes: dict[str, Outcome], name: str) -> None:
    fault, outcome = SILENT[name], outcomes[name]

    checked = check_model(outcome.model)

    assert outcome.came_up
    assert outcome.unfilled == tuple(f"language_model.model.{parameter}" for parameter in fault.lacking)
    assert fault.said not in outcome.log
    assert fault.said in checked.stdout
    assert bool(checked.returncode) == (fault.refused or bool(fault.lacking))


@pytest.mark.parametrize("name", LOUD)
def test_vllm_refuses_it_and_so_does_the_kit(outcomes: dict[str, Outcome], name: str) -> None:
    _, message = LOUD[name]

    checked = check_model(outcomes[name].model)

    assert not outcomes[name].came_up
    assert message in outcomes[name].log
    assert checked.returncode != 0


def check_model(model: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROJECT / "scripts" / "kit"), "check-model", str(model)]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
