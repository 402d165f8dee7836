# SPDX-License-Identifier: Apache-2.0
"""An <im_patch> id outside the text vocabulary, on a real engine of the patched vLLM.

The class calls `configure_mm_token_handling`, which the class it extends does not. Both
sides are run: the class as it is, and one that differs in that call alone.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from target.vllm_half_cases import Case, Reply, Serve
from target.vllm_half_checkpoint import IMAGE_TOKEN, TINY
from target.vllm_half_engine import WITHOUT_TOKEN_HANDLING
from target.vllm_half_process import Raised

pytest_plugins = ["target.vllm_half_fixtures"]

INSIDE = Case()
OUTSIDE = [
    pytest.param(Case(size=replace(TINY, vocabulary=IMAGE_TOKEN)), id="the first id outside"),
    pytest.param(Case(size=replace(TINY, vocabulary=IMAGE_TOKEN - 50)), id="far outside"),
]


@pytest.mark.parametrize("outside", OUTSIDE)
def test_a_picture_is_answered_as_if_the_image_token_lay_inside(serve: Serve, outside: Case) -> None:
    assert_same(serve(outside).picture, serve(INSIDE).picture)


@pytest.mark.parametrize("outside", OUTSIDE)
def test_without_the_call_the_first_picture_is_an_index_error(serve: Serve, outside: Case) -> None:
    with pytest.raises(Raised, match=r"^IndexError: index out of range"):
        serve(replace(outside, architecture=WITHOUT_TOKEN_HANDLING))


def test_with_the_image_token_inside_the_call_changes_nothing(serve: Serve) -> None:
    shipped, without = serve(INSIDE), serve(replace(INSIDE, architecture=WITHOUT_TOKEN_HANDLING))

    assert_same(without.picture, shipped.picture)
    assert_same(without.text, shipped.text)


def assert_same(found: Reply, expected: Reply) -> None:
    """Equal logits for the tokens that both vocabularies have, and the same answer."""
    assert found.prompt == expected.prompt
    assert found.tokens == expected.tokens
    for one, other in zip(found.logits, expected.logits, strict=True):
        assert one == pytest.approx(other[: len(one)], abs=1e-4)
