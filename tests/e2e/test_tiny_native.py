# SPDX-License-Identifier: Apache-2.0
"""The kit on vLLM 0.20.2 against vLLM 0.25.1, which has the model by itself: the same weights and prompts.

`test_tiny_peer` holds the reference against code that shares nothing with vLLM. This peer shares
the engine, and it is where a user goes when the kit is no longer needed: the answers must not change.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.cases import QUESTIONS
from e2e.roots import MODEL
from tiny.comparison import FAR, TOLERANCE, apart, compare
from tiny.engine import Reply
from tiny.packages import NATIVE, installed
from tiny.pictures import Views
from tiny.reference import Feature, Reference

pytest_plugins = ["e2e.server_fixtures"]

FEATURES = [feature for feature in Feature if feature is not Feature.PICTURE]


def test_its_model_class_is_not_the_kits(sandbox_python: Path, patched_root: Path) -> None:
    """Else it would be no peer."""
    native = installed(NATIVE, sandbox_python) / MODEL

    assert native.read_bytes() != (patched_root / MODEL).read_bytes()


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_kit_says_what_a_vllm_with_the_model_in_it_says(
    one_process: dict[str, Reply], native: dict[str, Reply], name: str, note: Callable[[str], None]
) -> None:
    worst = apart(one_process[name], native[name])

    note(f"the kit and native vLLM, {name}: log-probabilities differ by {worst:.1e} at the most")
    assert one_process[name].prompt == native[name].prompt
    assert one_process[name].answer == native[name].answer
    assert worst < TOLERANCE


@pytest.mark.parametrize("name", QUESTIONS)
def test_it_says_what_the_reference_says(
    native: dict[str, Reply],
    views: dict[str, list[Views]],
    flat_model: Path,
    name: str,
    note: Callable[[str], None],
) -> None:
    found = compare(native[name], Reference(flat_model), views[name])

    note(f"native vLLM and reference, {name}: {found}")
    assert found.worst < TOLERANCE
    assert found.same_tokens


@pytest.mark.parametrize("feature", FEATURES)
def test_without_a_feature_the_reference_says_something_else(
    native: dict[str, Reply], flat_model: Path, feature: Feature
) -> None:
    """So this peer has every one of them, and the kit with it."""
    assert compare(native["text"], Reference(flat_model, [feature])).worst > FAR
