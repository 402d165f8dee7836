# SPDX-License-Identifier: Apache-2.0
"""The vLLM half of the set: one running process for each state of it, started when first asked for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from target.vllm_half_cases import CONVERSATIONS, Answers, Case, Serve, parse
from target.vllm_half_checkpoint import write_model
from target.vllm_half_process import Target

ANSWERED_TOKENS = 4
TOKENIZERS = Path("vllm/tokenizers/registry.py")


@pytest.fixture(scope="session")
def pristine_vllm(
    sandbox_python: Path, pristine_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    root = link_vllm(pristine_root, tmp_path_factory.mktemp("pristine-vllm"))
    yield from running(sandbox_python, root, tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="session")
def half_patched_vllm(
    sandbox_python: Path, pristine_root: Path, patched_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    """The tokenizer's entry in the set without the wrapper, as a reader of other instructions may have it."""
    root = link_vllm(pristine_root, tmp_path_factory.mktemp("half-patched-vllm"))
    source, entry = (pristine_root / TOKENIZERS).read_text("utf-8"), '{"step3_vl", "step3p7"}'
    assert entry in (patched_root / TOKENIZERS).read_text("utf-8")
    (root / TOKENIZERS).unlink()
    (root / TOKENIZERS).write_text(source.replace('{"step3_vl"}', entry), "utf-8")
    yield from running(sandbox_python, root, tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="session")
def linked_patched_root(patched_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return link_vllm(patched_root, tmp_path_factory.mktemp("patched-vllm"))


@pytest.fixture(scope="session")
def patched_vllm(
    sandbox_python: Path, linked_patched_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    yield from running(sandbox_python, linked_patched_root, tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="session")
def serve(
    sandbox_python: Path, linked_patched_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serve]:
    """Answers a `Case` from a real engine of the patched vLLM; each case is run once."""
    for target in running(sandbox_python, linked_patched_root, tmp_path_factory.mktemp("engine")):

        @lru_cache
        def ask(case: Case, target: Target = target) -> Answers:
            folder = tmp_path_factory.mktemp("model")
            write_model(folder, case.size, case.layout, case.architecture)
            return parse(
                target.ask(
                    "answers_of",
                    folder=str(folder),
                    tower_mode=case.tower_mode,
                    conversations=CONVERSATIONS,
                    tokens=ANSWERED_TOKENS,
                )
            )

        yield ask


def running(python: Path, root: Path, scratch: Path) -> Iterator[Target]:
    target = Target(python, root, scratch)
    yield target
    target.stop()


def link_vllm(root: Path, destination: Path) -> Path:
    """A folder with the same files of vLLM, where a run may leave its byte code."""
    shutil.copytree(root / "vllm", destination / "vllm", copy_function=os.link)
    return destination
