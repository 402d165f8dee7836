# SPDX-License-Identifier: Apache-2.0
"""The set ``window`` in the whole of vLLM: vllm-ascend's own attention class serves the tiny model.

vLLM gives a block of the KV cache back once the window has left it. A window that is one key too
wide reads one key of it all the same, and by then it may be another request's: an answer then
depends on who else is being served.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from target.conftest import window_root
from tiny.comparison import FAR, TOLERANCE
from tiny.crowd import Answer, prompts, read
from tiny.launch import TESTS, environment
from tiny.reference import Reference

__all__ = ["window_root"]

POOLS = (400, 200, 130, 70)
"""Blocks of 16 tokens. All twelve requests together would need about as many as the first has."""

TIMEOUT_S = 500


@pytest.fixture(scope="module")
def served(
    sandbox_python: Path,
    patched_root: Path,
    window_root: Path,
    flat_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, list[list[Answer]]]:
    """Alone, and together in each of the pools; without the set and with it."""
    return {
        name: crowd(sandbox_python, root, flat_model, tmp_path_factory.mktemp(name))
        for name, root in (("base", patched_root), ("window", window_root))
    }


def crowd(python: Path, root: Path, model: Path, scratch: Path) -> list[list[Answer]]:
    settings = environment(scratch, root)
    path = os.pathsep.join([settings["PYTHONPATH"], str(TESTS), str(TESTS.parent / "scripts")])
    answers = scratch / "answers.json"
    run = subprocess.run(
        [str(python), "-P", "-m", "tiny.crowd", str(model), str(root), str(answers), *map(str, POOLS)],
        cwd=scratch,
        env=settings | {"PYTHONPATH": path, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert run.returncode == 0, run.stderr[-6000:]
    return read(answers)


def worst(one: Answer, other: Answer) -> float:
    """The largest difference of log-probabilities; infinite where the tokens are others."""
    if one.tokens != other.tokens:
        return float("inf")
    pairs = zip(one.log_probabilities, other.log_probabilities, strict=True)
    return max(abs(a - b) for a, b in pairs)


def changed(served: list[list[Answer]]) -> dict[int, list[int]]:
    """For each pool, the requests whose answers are others than when they were alone."""
    alone, *together = served
    return {
        blocks: [
            number
            for number, (one, other) in enumerate(zip(alone, row, strict=True))
            if worst(one, other) > TOLERANCE
        ]
        for blocks, row in zip(POOLS, together, strict=True)
    }


def test_with_the_set_an_answer_does_not_depend_on_who_else_is_served(
    served: dict[str, list[list[Answer]]], note: Callable[[str], None]
) -> None:
    found = changed(served["window"])
    note(f"alone and together, with the set: requests whose answers differ, by blocks in the pool: {found}")
    assert found == {blocks: [] for blocks in POOLS}


def test_without_the_set_it_does_in_a_pool_that_is_short_of_blocks(
    served: dict[str, list[list[Answer]]], note: Callable[[str], None]
) -> None:
    """The key too many is read off a block that was given to another request."""
    found = changed(served["base"])
    note(f"alone and together, without it: requests whose answers differ, by blocks in the pool: {found}")
    assert found[POOLS[0]] == []
    assert any(found.values())


@pytest.mark.parametrize("request_number", [0, 5])
def test_the_answers_are_the_references_with_the_set_and_not_without_it(
    served: dict[str, list[list[Answer]]], flat_model: Path, request_number: int, note: Callable[[str], None]
) -> None:
    """Prompt, cache and steps through vllm-ascend's class: the whole way that a token takes."""
    errors = {
        name: from_reference(rows[0][request_number], prompts()[request_number], flat_model)
        for name, rows in served.items()
    }
    note(f"vllm-ascend's attention and the reference, request {request_number}: {errors}")
    assert errors["window"] < TOLERANCE
    assert errors["base"] > FAR


def from_reference(answer: Answer, prompt: list[int], model: Path) -> float:
    """The largest difference of the log-probabilities of the answer's own tokens."""
    expected = Reference(model).log_probabilities([*prompt, *answer.tokens])[len(prompt) - 1 : -1]
    of_tokens = expected.gather(-1, torch.tensor(answer.tokens)[:, None])[:, 0]
    return float((of_tokens - torch.tensor(answer.log_probabilities)).abs().max())
