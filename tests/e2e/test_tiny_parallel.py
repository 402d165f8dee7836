# SPDX-License-Identifier: Apache-2.0
"""The tiny model on two ranks of the real vLLM, against the reference: as on cards, with gloo for HCCL.

Float32, greedy. One engine for each way to divide the model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tiny.comparison import TOLERANCE, compare
from tiny.conversations import CHINESE, ask, picture
from tiny.engine import Question
from tiny.engine_process import ask_engine
from tiny.launch import environment
from tiny.pictures import look_at
from tiny.reference import Reference

DRAWN = picture(120, 200)
"""Two crops and the whole: more than one view for each rank."""

QUESTIONS = {"text": Question(ask(CHINESE)), "picture": Question(ask("这张图片里有什么？", DRAWN))}
ONE_CORE_EACH = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}

DIVISIONS: dict[str, dict[str, Any]] = {
    "tensors": {"tensor_parallel_size": 2},
    "tensors, the tower by pictures": {"tensor_parallel_size": 2, "mm_encoder_tp_mode": "data"},
    "tensors, and whole experts": {"tensor_parallel_size": 2, "enable_expert_parallel": True},
    "layers": {"pipeline_parallel_size": 2},
}


@pytest.mark.parametrize("division", DIVISIONS)
def test_two_ranks_say_what_the_reference_says(
    sandbox_python: Path,
    patched_root: Path,
    flat_model: Path,
    tmp_path: Path,
    note: Callable[[str], None],
    division: str,
) -> None:
    settings = environment(tmp_path, patched_root) | ONE_CORE_EACH
    options = {"distributed_executor_backend": "mp", **DIVISIONS[division]}
    reference = Reference(flat_model)

    replies = ask_engine(sandbox_python, settings, flat_model, QUESTIONS, tmp_path, **options).replies
    text = compare(replies["text"], reference)
    seen = compare(replies["picture"], reference, [look_at(DRAWN)])

    note(f"two ranks and reference, divided by {division}: text: {text}; picture: {seen}")
    assert max(text.worst, seen.worst) < TOLERANCE
    assert text.same_tokens
    assert seen.same_tokens
