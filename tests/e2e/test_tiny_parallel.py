# SPDX-License-Identifier: Apache-2.0
"""The tiny model on several ranks of the real vLLM, against the reference: as on cards, with gloo for HCCL.

Float32, greedy. One engine for each way to divide the model: on two ranks, and on eight as on the
cards of a whole node, however few cores there are.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

from tiny.checkpoint import write_checkpoint
from tiny.comparison import TOLERANCE, compare
from tiny.config import FOR_EIGHT_RANKS
from tiny.conversations import CHINESE, ask, picture
from tiny.engine import Question
from tiny.engine_process import ask_engine
from tiny.launch import environment
from tiny.pictures import look_at
from tiny.reference import Reference

DRAWN = picture(120, 200)
"""Two crops and the whole: for two ranks more than one view each, and for eight not even that."""

QUESTIONS = {"text": Question(ask(CHINESE)), "picture": Question(ask("这张图片里有什么？", DRAWN))}
WHOLE_EXPERTS = {"enable_expert_parallel": True}
BY_PICTURES = {"mm_encoder_tp_mode": "data"}
TIMEOUT_S = 900


@dataclass(frozen=True)
class Division:
    """How many ranks, and the options of vLLM's ``LLM`` that divide the model among them."""

    ranks: int
    options: dict[str, Any]


DIVISIONS = {
    "2 ranks: tensors": Division(2, {"tensor_parallel_size": 2}),
    "2 ranks: tensors, the tower by pictures": Division(2, {"tensor_parallel_size": 2} | BY_PICTURES),
    "2 ranks: tensors, and whole experts": Division(2, {"tensor_parallel_size": 2} | WHOLE_EXPERTS),
    "2 ranks: layers": Division(2, {"pipeline_parallel_size": 2}),
    "8 ranks: tensors": Division(8, {"tensor_parallel_size": 8}),
    "8 ranks: tensors, whole experts, the tower by pictures": Division(
        8, {"tensor_parallel_size": 8} | WHOLE_EXPERTS | BY_PICTURES
    ),
}


@pytest.fixture(scope="module")
def models(flat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """By the number of ranks that can share it."""
    wide = tmp_path_factory.mktemp("model") / "for-eight-ranks"
    write_checkpoint(wide, size=FOR_EIGHT_RANKS)
    return {2: flat_model, 8: wide}


@pytest.mark.parametrize("name", DIVISIONS)
def test_the_ranks_say_what_the_reference_says(
    sandbox_python: Path,
    patched_root: Path,
    models: dict[int, Path],
    tmp_path: Path,
    note: Callable[[str], None],
    name: str,
) -> None:
    division = DIVISIONS[name]
    model = models[division.ranks]
    settings = environment(tmp_path, patched_root) | one_core_each(division.ranks)
    options = {
        "distributed_executor_backend": "mp",
        "gpu_memory_utilization": 0.05,  # of the machine, for each rank
        **division.options,
    }

    replies = ask_engine(
        sandbox_python, settings, model, QUESTIONS, tmp_path, timeout_s=TIMEOUT_S, **options
    ).replies
    reference = Reference(model)
    text = compare(replies["text"], reference)
    seen = compare(replies["picture"], reference, [look_at(DRAWN)])

    note(f"{name}: text: {text}; picture: {seen}")
    assert max(text.worst, seen.worst) < TOLERANCE
    assert text.same_tokens
    assert seen.same_tokens


def one_core_each(ranks: int) -> dict[str, str]:
    """Of the cores that this process may use, over and over where there are fewer than ranks."""
    cores = islice(cycle(sorted(os.sched_getaffinity(0))), ranks)
    return {"VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, cores))}
