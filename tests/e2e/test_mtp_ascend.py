# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend's half of the set mtp: its real proposer, driven step by step by vLLM's runner on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.mtp_cases import RunSession, greedy, says_the_same, wrong_drafts
from e2e.mtp_fixtures import run
from tiny.draft_engine import Done
from tiny.draft_process import DRAFTING
from tiny.drafting import Remembering

__all__ = ["run"]

QUESTIONS = {"q": greedy(17, "text", "english", "picture")}


@pytest.fixture(scope="module")
def drafted(run: RunSession, drafting_root: Path, flat_model: Path) -> Done:
    return run(drafting_root, flat_model, QUESTIONS, ascend=True, **DRAFTING).done["q"]


def test_its_drafts_are_those_of_a_plain_account(drafted: Done, flat_model: Path) -> None:
    assert drafted.counted["drafts"] > [0]
    assert wrong_drafts(drafted, Remembering(flat_model)) == 0


def test_its_answers_are_those_without_drafting(
    run: RunSession, patched_root: Path, flat_model: Path, drafted: Done
) -> None:
    assert says_the_same(drafted, run(patched_root, flat_model, QUESTIONS).done["q"])
