# SPDX-License-Identifier: Apache-2.0
"""Drafting changes no answer, and drafts what a plain account says: the set mtp with the real vLLM on a CPU.

Float32, greedy, more requests than slots. Three engines: the base set alone, the set mtp not asked for,
and the set mtp drafting; the last one also with every wrong way of `tiny.draft_mutants`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.mtp_cases import RunSession, distance, greedy, says_the_same, tokens, wrong_drafts
from e2e.mtp_fixtures import run
from e2e.roots import edit
from target.conftest import copy_root
from tiny.config import TINY
from tiny.conversations import ask
from tiny.draft_engine import Asked, Session, Task
from tiny.draft_mutants import MUTANTS
from tiny.draft_process import DRAFTING
from tiny.drafting import Proposal, Remembering
from tiny.engine_process import EngineFailed
from tiny.reference import Reference

__all__ = ["run"]

NUMBER = {"structured_outputs": {"regex": "[0-9]{6}"}, "ignore_eos": False, "temperature": 0, "logprobs": 0}

PLAIN = {
    "all": greedy(17),
    "a grammar": Task({"number": Asked(ask("多少？"), NUMBER | {"max_tokens": 12})}),
    "a stop": greedy(17, "text", stop_token_ids=[207]),
}
SEEN = ("text", "english", "picture")
"""By the mutants."""

OF_ONE_SHAPE = {"max_num_seqs": 3}
SEEN_BY_THE_ACCOUNT = [name for name in MUTANTS if name != "no_draft_near_the_greatest_length"]


@pytest.fixture(scope="module")
def plain(run: RunSession, patched_root: Path, flat_model: Path) -> Session:
    return run(patched_root, flat_model, PLAIN, **OF_ONE_SHAPE)


@pytest.fixture(scope="module")
def drafting(run: RunSession, drafting_root: Path, flat_model: Path) -> Session:
    given_up = {"given up": replace(greedy(60, "text", "english"), abort_after=5)}
    mutants = {name: replace(greedy(17, *SEEN), mutant=name) for name in SEEN_BY_THE_ACCOUNT}
    tasks = given_up | PLAIN | mutants
    return run(drafting_root, flat_model, tasks, **OF_ONE_SHAPE, **DRAFTING)


@pytest.fixture(scope="module")
def reference(flat_model: Path) -> Reference:
    return Remembering(flat_model)


def test_the_draft_layers_lie_in_several_kv_cache_groups(drafting: Session) -> None:
    """Else nothing here proves anything: with one group for all, the obvious way is right."""
    drawn = {f"layers.{layer}." for layer in range(TINY.layers, TINY.layers + TINY.mtp_layers)}
    holding = [group for group in drafting.groups if any(layer in name for name in group for layer in drawn)]

    assert len(holding) == TINY.mtp_layers


@pytest.mark.parametrize("task", PLAIN)
def test_answers_are_the_same_with_drafting(
    plain: Session, drafting: Session, task: str, note: Callable[[str], None]
) -> None:
    """Text and pictures, an answer that ends within a draft, a grammar; and after requests were given up."""
    found, expected = drafting.done[task], plain.done[task]

    note(f"with mtp and without, {task}: log-probabilities differ by {distance(found, expected):.1e}")
    assert says_the_same(found, expected)


def test_something_was_drafted_for_every_question(drafting: Session) -> None:
    assert all(drafting.done["all"].proposals[name] for name in PLAIN["all"].asked)
    assert drafting.done["all"].counted["drafts"] > [0]


def test_the_grammar_had_a_say(plain: Session) -> None:
    [said] = plain.done["a grammar"].answers["number"]
    assert said.finish == "stop"


def test_not_asked_for_the_set_changes_not_one_bit(
    run: RunSession, plain: Session, drafting_root: Path, flat_model: Path
) -> None:
    assert run(drafting_root, flat_model, PLAIN, **OF_ONE_SHAPE).done == plain.done


def test_the_drafts_are_those_of_a_plain_account(drafting: Session, reference: Reference) -> None:
    assert wrong_drafts(drafting.done["all"], reference) == 0


@pytest.mark.parametrize("mutant", SEEN_BY_THE_ACCOUNT)
def test_a_wrong_way_to_draft_is_seen(
    drafting: Session, reference: Reference, mutant: str, note: Callable[[str], None]
) -> None:
    done = drafting.done[mutant]
    wrong = wrong_drafts(done, reference)

    drafted = sum(map(drafts, done.proposals.values()))
    note(f"{mutant}: {wrong} of {drafted} drafts are not those of the account")
    assert wrong > 0


def drafts(proposals: list[Proposal]) -> int:
    return sum(len(proposal.drafts) for proposal in proposals)


def test_with_the_models_own_table_the_answers_are_others(plain: Session, drafting: Session) -> None:
    """What dropping vLLM's assertion on one KV cache group does: the draft writes over the model's cache."""
    corrupted = tokens(drafting.done["the_models_table_for_all"])
    assert corrupted != {name: tokens(plain.done["all"])[name] for name in SEEN}


def test_with_lists_cropped_to_the_main_layers_the_draft_is_not_built(
    run: RunSession, drafting_root: Path, flat_model: Path, tmp_path: Path
) -> None:
    """As transformers leaves them, and as the native releases take them."""
    root = copy_root(drafting_root, tmp_path / "root")
    edit(
        root / "vllm/config/step3p7_mtp.py",
        "            setattr(text_config, name, value)\n",
        "            pass\n",
    )

    with pytest.raises(EngineFailed, match="IndexError: list index out of range"):
        run(root, flat_model, {}, **DRAFTING)
