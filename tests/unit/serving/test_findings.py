# SPDX-License-Identifier: Apache-2.0
"""One form of findings, and cures that can be typed as they stand, however the kit was called."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from serving import findings
from serving.findings import problem
from serving.typed import Typed
from tree import PROJECT
from unit.serving.model_folders import ModelFolder, published_config
from unit.test_dist import build

KEYS = {"severity", "name", "subject", "what", "expected", "why", "cure", "details"}


@pytest.mark.parametrize(
    ("kit", "serve"),
    [
        ("scripts/kit", "MODEL=/data/Step-3.7-Flash scripts/serve.sh"),
        ("/opt/kit/scripts/kit", "MODEL=/data/Step-3.7-Flash /opt/kit/scripts/serve.sh"),
        ("kit", "vllm serve /data/Step-3.7-Flash"),
        ("python3 kit.pyz", "vllm serve /data/Step-3.7-Flash"),
    ],
)
def test_a_cure_is_typed_as_the_kit_was_called(kit: str, serve: str) -> None:
    found = problem("name", "where", "what", "{kit} verify {options}; {serve}")

    shown = findings.lines([found], Typed(kit, "--root 'a b'"))

    assert shown[-1].split("cure:")[1].strip() == f"{kit} verify --root 'a b'; {serve}"
    assert findings.as_json(found, Typed(kit))["cure"] == f"{kit} verify; {serve}"


def test_a_cure_is_one_line_that_can_be_copied_and_a_sentence_is_wrapped() -> None:
    found = problem("name", "where", "many words " * 30, "x " * 100)

    shown = findings.lines([found], Typed())

    assert max(len(line) for line in shown[:-1]) <= 110
    assert shown[-1].endswith("x " * 100)


def test_nothing_out_of_a_file_reaches_the_terminal_as_a_control_character() -> None:
    found = problem("name", "a\x1b[2Jb", "c\nd", "e\rf", ["g\x07h"])

    assert all(line.isprintable() for line in findings.lines([found], Typed()))


@pytest.mark.parametrize("call", ["checkout", "pyz"])
def test_check_model_and_plan_name_the_commands_of_this_kit(tmp_path: Path, call: str) -> None:
    folder = ModelFolder(config=published_config(), shards=4).write(tmp_path / "model")
    kit = PROJECT / "scripts" / "kit" if call == "checkout" else build(PROJECT, tmp_path / "kit.pyz")
    typed, start = f"{kit}", f"MODEL={folder} {PROJECT}/scripts/serve.sh"
    if call == "pyz":
        typed, start = f"python3 {kit}", f"vllm serve {folder}"

    def printed(*arguments: str | Path) -> str:
        return subprocess.run([sys.executable, kit, *arguments], capture_output=True, text=True).stdout

    found = json.loads(printed("check-model", folder, "--json"))["findings"]

    assert f"cure:     {typed} verify" in printed("check-model", folder)
    assert {frozenset(finding) for finding in found} == {frozenset(KEYS)}
    assert f"{start} \\" in printed("plan", folder).splitlines()
