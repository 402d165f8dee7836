# SPDX-License-Identifier: Apache-2.0
"""One server over two machines by vLLM's own executor: what becomes of a node when the other is gone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cases import QUESTIONS
from e2e.chat import say
from e2e.server import Setup, kill, session
from e2e.two_nodes import Pair, serving_on, two_nodes

pytest_plugins = ["e2e.server_fixtures"]

WATCHED_S = 30


@pytest.fixture(scope="module")
def pair(
    sandbox_python: Path, patched_root: Path, flat_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    setup = Setup(sandbox_python, flat_model, patched_root)
    with (
        two_nodes(f"p{os.getpid()}") as nodes,
        serving_on(nodes, setup, tmp_path_factory.mktemp("parted")) as found,
    ):
        yield found


def test_a_worker_serves_on_without_its_launcher(pair: Pair) -> None:
    """So to end a node, end the worker too."""
    kill(pair.second.process.pid)
    pair.second.process.wait()

    assert pair.second.workers()
    assert say(pair.server, QUESTIONS["text"].messages).usage.completion_tokens > 0


def test_the_second_node_outlives_the_first(pair: Pair) -> None:
    """It waits for work that never comes, so whoever starts the first anew must end the second."""
    for pid in session(pair.first.process.pid):
        kill(pid)
    pair.first.process.wait()

    assert not pair.second.ends_within(WATCHED_S)
