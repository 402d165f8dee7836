# SPDX-License-Identifier: Apache-2.0
"""The other releases: the least that tells a broken one. Of the sandbox's own, every test here does.

Each is patched by the kit, verified, served with the tiny model and asked about a text and a
picture: the reference must agree, and so must a vLLM that has the model by itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.cases import QUESTIONS, TEXTS, Serve
from e2e.chat import say_with_figures
from e2e.roots import kit
from e2e.server import Server, Way
from target import releases
from target.conftest import PROJECT, TIMEOUT_S, copy_root
from tiny.comparison import TOLERANCE, apart, compare
from tiny.conversations import prompt_ids
from tiny.engine import Reply
from tiny.engine_process import EngineFailed, ask_engine
from tiny.launch import environment
from tiny.pictures import Views
from tiny.reference import Reference

pytest_plugins = ["e2e.server_fixtures"]

WAY = Way(options=("--max-logprobs=-1",))


@pytest.fixture(scope="module", params=releases.NAMES)
def release(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def root(release: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its packages, patched by the kit, which finds out by itself what they are."""
    copy = copy_root(releases.published(release), tmp_path_factory.mktemp(release) / "root")
    kit("apply", copy)
    return copy


@pytest.fixture(scope="module")
def server(serve: Serve, root: Path, published_form: Path) -> Iterator[Server]:
    with serve(root, published_form, WAY) as running:
        yield running


def test_every_level_of_verify_that_needs_no_npu_passes(
    root: Path, sandbox_python: Path, tmp_path: Path
) -> None:
    python = releases.interpreter_with(root, sandbox_python, tmp_path / "venv")
    kit_verify = (str(PROJECT / "scripts" / "kit"), "verify", "--json", "--python", str(python))
    command = [sys.executable, "-I", "-S", *kit_verify]

    run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)

    assert run.returncode == 0, run.stdout
    results = [(check["subject"], check["result"]) for check in json.loads(run.stdout)["checks"]]
    assert {what for what, result in results if result == "not run"} == {"activation", "MoE branch"}
    assert {result for _, result in results} == {"passed", "not run"}
    assert {"model class", "router bias", "tokenizer"} <= {what for what, _ in results}


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_server_says_what_the_reference_says(
    release: str,
    server: Server,
    views: dict[str, list[Views]],
    flat_model: Path,
    name: str,
    note: Callable[[str], None],
) -> None:
    reply = say_with_figures(server, QUESTIONS[name].messages)

    found = compare(reply, Reference(flat_model), views[name])

    note(f"{release}, server and reference, {name}: {found}")
    assert reply.prompt == prompt_ids(flat_model, TEXTS[name], views[name])
    assert found.worst < TOLERANCE
    assert found.same_tokens


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_server_says_what_a_vllm_with_the_model_in_it_says(
    release: str, server: Server, native: dict[str, Reply], name: str, note: Callable[[str], None]
) -> None:
    reply = say_with_figures(server, QUESTIONS[name].messages)

    assert reply.prompt == native[name].prompt
    assert reply.answer == native[name].answer
    worst = apart(reply, native[name])

    note(f"{release}, server and native vLLM, {name}: log-probabilities differ by {worst:.1e} at the most")
    assert worst < TOLERANCE


def test_unpatched_it_does_not_know_the_model(
    release: str, sandbox_python: Path, flat_model: Path, tmp_path: Path
) -> None:
    """Else the tests above would prove nothing of the set."""
    settings = environment(tmp_path, releases.published(release))

    with pytest.raises(EngineFailed, match=r"step3p7|Step3p7ForConditionalGeneration"):
        ask_engine(sandbox_python, settings, flat_model, {"text": QUESTIONS["text"]}, tmp_path)
