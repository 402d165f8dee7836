# SPDX-License-Identifier: Apache-2.0
"""smoke, bench and report against the real server with the tiny model, as their users type them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.cases import Serve
from e2e.server import Server
from tiny.launch import environment

PROJECT = Path(__file__).resolve().parent.parent.parent
KIT = PROJECT / "scripts" / "kit"
TIMEOUT_S = 600

pytest_plugins = ["e2e.server_fixtures"]


@dataclass(frozen=True)
class Kit:
    """The kit on a machine whose vLLM is the patched copy."""

    python: Path
    settings: dict[str, str]

    def __call__(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [str(self.python), "-I", "-S", str(KIT), *map(str, arguments)]
        return subprocess.run(command, env=self.settings, capture_output=True, text=True, timeout=TIMEOUT_S)


@pytest.fixture(scope="module")
def server(serve: Serve, patched_root: Path, flat_model: Path) -> Iterator[Server]:
    with serve(patched_root, flat_model) as running:
        yield running


@pytest.fixture(scope="module")
def kit(sandbox_python: Path, patched_root: Path, caches: Path) -> Kit:
    settings = environment(caches, patched_root)
    path = f"{sandbox_python.parent}:{os.environ['PATH']}"
    return Kit(sandbox_python, settings | {"PATH": path, "TORCHDYNAMO_DISABLE": "1"})


@pytest.fixture(scope="module")
def results(kit: Kit, server: Server, flat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rows that fit, and one that does not."""
    folder = tmp_path_factory.mktemp("bench") / "results"
    rows = ("64:16:2", "256:16:2", "8192")
    run = kit(
        "bench",
        "--url",
        server.url,
        "--out",
        folder,
        "--rounds",
        "2",
        "--tokenizer",
        flat_model,
        "--rows",
        *rows,
    )
    assert run.returncode == 1, run.stdout + run.stderr  # a row that does not fit is an answer of no
    assert "DOES NOT FIT" in run.stdout + run.stderr
    return folder


def statuses(answer: dict[str, Any]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for finding in answer["findings"]:
        found.setdefault(finding["subject"], set()).add(finding["severity"])
    return found


def test_smoke_passes_on_the_patched_server(
    kit: Kit, server: Server, flat_model: Path, note: Callable[[str], None]
) -> None:
    run = kit("smoke", "--url", server.url, "--folder", flat_model, "--max-tokens", "48")
    note(f"kit smoke: {run.stdout.strip().splitlines()[-1]}")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "PROBLEM" not in run.stdout
    for check in ("health", "tokenizer", "prompt-tokens", "chinese", "streaming", "picture", "parallel"):
        assert f" {check}: " in run.stdout, check


def test_smoke_tells_random_words_from_an_answer(kit: Kit, server: Server, flat_model: Path) -> None:
    run = kit("smoke", "--url", server.url, "--folder", flat_model, "--max-tokens", "48", "--quality")
    assert run.returncode == 1
    assert "PROBLEM" in run.stdout


def test_smoke_names_the_served_models_for_a_wrong_one(kit: Kit, server: Server) -> None:
    run = kit("smoke", "--url", server.url, "--model", "nope")
    assert run.returncode == 1
    assert "'nope' is not served; the server has: step3p7" in run.stdout


def test_bench_keeps_what_is_measured(kit: Kit, server: Server, flat_model: Path, results: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in results.rglob("*.json")}
    run = kit(
        "bench",
        "--url",
        server.url,
        "--out",
        results,
        "--rounds",
        "2",
        "--tokenizer",
        flat_model,
        "--rows",
        "64:16:2",
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "kept" in run.stdout + run.stderr
    assert all(path.stat().st_mtime_ns == before[path] for path in before if "64" in path.name)


def test_report_shows_every_row_and_the_one_that_did_not_fit(
    kit: Kit, results: Path, flat_model: Path, tmp_path: Path
) -> None:
    markdown = tmp_path / "report.md"
    run = kit("report", results, "--model", flat_model, "--chip", "910B3", "--out", markdown)
    assert run.returncode == 0, run.stdout + run.stderr
    text = markdown.read_text()
    for wanted in ("64", "256", "8192", "TTFT", "TPOT"):
        assert wanted in text


def test_report_draws(kit: Kit, results: Path, tmp_path: Path) -> None:
    python = os.environ.get("KIT_DRAW_PYTHON")
    if not python:
        pytest.fail("KIT_DRAW_PYTHON names no Python with matplotlib: use make test-e2e", pytrace=False)
    pictures = [tmp_path / "report.png", tmp_path / "report.svg"]
    options = [word for picture in pictures for word in ("--picture", str(picture))]
    run = kit("report", results, "--python", python, *options)
    assert run.returncode == 0, run.stdout + run.stderr
    assert pictures[0].read_bytes().startswith(b"\x89PNG\r\n")
    assert "<svg" in pictures[1].read_text()


def test_the_json_of_smoke_is_one_object(kit: Kit, server: Server) -> None:
    run = kit("smoke", "--url", server.url, "--max-tokens", "32", "--json")
    answer = json.loads(run.stdout)
    assert answer["exit_code"] == run.returncode == 0
    assert statuses(answer)["health"] == {"ok"}
