# SPDX-License-Identifier: Apache-2.0
"""The reference against the ``step3p7`` of transformers, which none of us wrote: same weights and prompts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tiny.conversations import LONG_CHINESE, picture, prompt_ids
from tiny.packages import PEER, installed
from tiny.peer import Prompt
from tiny.peer_process import ask_peer
from tiny.pictures import Views, look_at
from tiny.reference import Feature, Reference

TOLERANCE = 1e-4
FAR = 100 * TOLERANCE

PICTURES = {
    "text": (),
    "picture": ((224, 224),),
    "picture with crops": ((1024, 768),),
    "two pictures": ((300, 200), (120, 200)),
}
TEXTS = {name: "这些图片里有什么？" if sizes else LONG_CHINESE for name, sizes in PICTURES.items()}


@pytest.fixture(scope="module")
def views() -> dict[str, list[Views]]:
    return {name: [look_at(picture(*size)) for size in sizes] for name, sizes in PICTURES.items()}


@pytest.fixture(scope="module")
def prompts(flat_model: Path, views: dict[str, list[Views]]) -> dict[str, Prompt]:
    return {
        name: Prompt(prompt_ids(flat_model, TEXTS[name], views[name]), sizes)
        for name, sizes in PICTURES.items()
    }


@pytest.fixture(scope="module")
def peer(
    sandbox_python: Path,
    flat_model: Path,
    prompts: dict[str, Prompt],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, torch.Tensor]:
    """Log-probabilities of each prompt."""
    packages = installed(PEER, sandbox_python)
    return ask_peer(sandbox_python, packages, flat_model, prompts, tmp_path_factory.mktemp("peer"))


@pytest.mark.parametrize("name", PICTURES)
def test_the_reference_says_what_the_peer_says(
    peer: dict[str, torch.Tensor],
    prompts: dict[str, Prompt],
    views: dict[str, list[Views]],
    flat_model: Path,
    name: str,
    note: Callable[[str], None],
) -> None:
    expected = Reference(flat_model).log_probabilities(prompts[name].tokens, views[name])

    worst = float((peer[name] - expected).abs().max())

    note(f"transformers and reference, {name}: log-probabilities differ by {worst:.1e} at the most")
    assert worst < TOLERANCE


@pytest.mark.parametrize("feature", Feature)
def test_without_a_feature_the_reference_says_something_else(
    peer: dict[str, torch.Tensor],
    prompts: dict[str, Prompt],
    views: dict[str, list[Views]],
    flat_model: Path,
    feature: Feature,
) -> None:
    without = Reference(flat_model, [feature])

    found = without.log_probabilities(prompts["picture"].tokens, views["picture"])

    assert float((peer["picture"] - found).abs().max()) > FAR
