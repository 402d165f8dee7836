# SPDX-License-Identifier: Apache-2.0
"""``scripts/serve.sh`` to a server that answers: the default profile, less what two CPU cores cannot do."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import openai
import pytest

from e2e.server import HOST, LOOPBACK, free_port, get_health, silently, stop, wait_until_healthy
from tiny.conversations import ask
from tiny.launch import environment

SERVE = Path(__file__).resolve().parent.parent.parent / "scripts" / "serve.sh"
ON_A_CPU = ("--tensor-parallel-size=1", "--dtype=float32", "--max-model-len=4096", "--enforce-eager")
REFUSAL_S = 60

pytest_plugins = ["e2e.server_fixtures"]


def settings_for(python: Path, root: Path, caches: Path, model: Path, port: int) -> dict[str, str]:
    settings = environment(caches, root) | LOOPBACK
    path = f"{python.parent}:{os.environ['PATH']}"
    asked = {"PATH": path, "ROOT": str(root), "MODEL": str(model), "PORT": str(port)}
    return settings | asked


def test_the_profile_serves_and_a_signal_ends_it(
    sandbox_python: Path, patched_root: Path, flat_model: Path, caches: Path, tmp_path: Path
) -> None:
    port, log = free_port(), tmp_path / "log"
    settings = settings_for(sandbox_python, patched_root, caches, flat_model, port) | {"FORCE": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [SERVE, *ON_A_CPU], env=settings, stdout=output, stderr=output, cwd="/", start_new_session=True
        )
    try:
        wait_until_healthy(process, port, log, silently)
        said = log.read_text("utf-8", "replace")
        assert "starting all the same, because of FORCE=1" in said
        with openai.OpenAI(base_url=f"http://{HOST}:{port}/v1", api_key="none") as client:
            reply = client.chat.completions.create(
                model="step3p7-flash", messages=ask("你好"), max_tokens=4, temperature=0
            )
        assert reply.usage.completion_tokens == 4

        process.send_signal(signal.SIGTERM)  # serve.sh has become vllm: exec, no shell in between
        assert process.wait(REFUSAL_S) in (0, -signal.SIGTERM)
        assert not get_health(port)
    finally:
        stop(process)


def test_problems_stop_it_before_the_start(
    sandbox_python: Path, patched_root: Path, flat_model: Path, caches: Path
) -> None:
    if Path("/dev/davinci0").exists():
        pytest.fail("this machine has a card, and the test is about one that has none")
    settings = settings_for(sandbox_python, patched_root, caches, flat_model, free_port())
    run = subprocess.run([SERVE, *ON_A_CPU], env=settings, capture_output=True, text=True, timeout=REFUSAL_S)
    assert run.returncode == 1
    assert "nothing was started" in run.stderr


def test_an_unpatched_installation_is_refused(
    sandbox_python: Path, pristine_root: Path, flat_model: Path, caches: Path
) -> None:
    settings = settings_for(sandbox_python, pristine_root, caches, flat_model, free_port())
    run = subprocess.run(
        [SERVE], env=settings | {"FORCE": "1"}, capture_output=True, text=True, timeout=REFUSAL_S
    )
    assert run.returncode == 3
    assert "none of the 5 files is applied" in run.stderr
    assert run.stderr.rstrip().splitlines()[-1].startswith("Next: ")
