# SPDX-License-Identifier: Apache-2.0
"""One server over two machines, without Ray: what it says, and what is seen when a part of it dies.

The executor is vllm-ascend's own, which on an NPU takes the place of vLLM's.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from e2e.cases import QUESTIONS, TEXTS
from e2e.chat import client, request, say_with_figures
from e2e.server import Setup, kill
from e2e.two_nodes import ASCEND_EXECUTOR, Pair, serving_on, two_nodes
from tiny.comparison import TOLERANCE, compare
from tiny.conversations import prompt_ids
from tiny.launch import SERVED_NAME
from tiny.pictures import Views
from tiny.reference import Reference
from tree import PROJECT

pytest_plugins = ["e2e.server_fixtures"]

ENDS_S = 60
PATIENCE_S = 20


@pytest.fixture(scope="module")
def pair(
    sandbox_python: Path, patched_root: Path, flat_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    setup = Setup(sandbox_python, flat_model, patched_root, ASCEND_EXECUTOR)
    with (
        two_nodes(f"k{os.getpid()}") as nodes,
        serving_on(nodes, setup, tmp_path_factory.mktemp("two-nodes")) as found,
    ):
        yield found


@pytest.mark.parametrize("name", QUESTIONS)
def test_two_nodes_say_what_the_reference_says(
    pair: Pair, views: dict[str, list[Views]], flat_model: Path, name: str, note: Callable[[str], None]
) -> None:
    reply = say_with_figures(pair.server, QUESTIONS[name].messages)

    found = compare(reply, Reference(flat_model), views[name])

    note(f"two nodes, {name}: {found}; healthy after {pair.server.start_s:.0f} s")
    assert reply.prompt == prompt_ids(flat_model, TEXTS[name], views[name])
    assert found.worst < TOLERANCE


def test_each_node_holds_a_part_of_the_model(pair: Pair) -> None:
    """Else the answers prove nothing about two."""
    assert [len(pair.first.workers()), len(pair.second.workers())] == [1, 1]
    assert pair.first.says("executor: AscendMultiprocExecutor")


def test_the_probe_of_a_pod_gets_its_token(pair: Pair) -> None:
    assert probe(pair, "started") == probe(pair, "health") == 0


def test_a_dead_worker_ends_its_node_and_the_first_one_hangs_while_it_says_it_is_healthy(pair: Pair) -> None:
    """So a probe has to ask for a token: ``/health`` never tells."""
    for worker in pair.second.workers():
        kill(worker)

    assert pair.second.ends_within(ENDS_S)

    with client(pair.server) as asked, pytest.raises(openai.APITimeoutError):
        asked.chat.completions.create(**request(QUESTIONS["text"].messages, 1), timeout=PATIENCE_S)
    assert pair.server.is_healthy()
    assert probe(pair, "started") == 0
    assert probe(pair, "health") != 0


def probe(pair: Pair, question: str) -> int:
    """The exit code of what Kubernetes asks of each pod."""
    told = {"URL": pair.server.url, "SERVED_NAME": SERVED_NAME, "ANSWER_S": str(PATIENCE_S)}
    asked = [str(PROJECT / "docker" / "k8s" / "node.sh"), question]
    return subprocess.run(asked, env=os.environ | told, check=False).returncode
