# SPDX-License-Identifier: Apache-2.0
"""The kit inside a container of the patched image."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from image.buildah import Container

VLLM = "vllm-workspace/vllm/vllm"
ASCEND = "vllm-workspace/vllm-ascend/vllm_ascend"
PRISTINE = {
    f"{VLLM}/model_executor/models/registry.py": (
        "e753cf1c6fa11cf609d3459fd50c41316acd479b35445954d5166c99834099ea"
    ),
    f"{VLLM}/tokenizers/registry.py": "1dacb3473023f3e496dee8993669ce4283f01f89589a2c91ce31db99e1b4562b",
    f"{ASCEND}/ops/activation.py": "b0025670953d0170686e1a14b45e589930636867826992477d3c494bb95be016",
    f"{ASCEND}/ops/fused_moe/moe_mlp.py": "25696c16d79097df96621c7eb0a485f18e0396362f10b31a402ba8f3f62c452a",
}
NEW = f"{VLLM}/model_executor/models/step3p7.py"


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize("folder", ["/", "/workspace", "/vllm-workspace", "/opt/step3p7-kit"])
def test_kit_verify_passes_from_any_folder(container: Container, folder: str) -> None:
    done = container.run(*container.entrypoint, "kit", "verify", "--json", folder=folder)

    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert (found["state"], found["passed"]) == ("applied", True)
    levels = {(check["level"], check["result"]) for check in found["checks"]}
    assert levels == {("bytes", "passed"), ("names", "passed"), ("imports", "not run")}


def test_any_user_can_ask_for_the_status(container: Container) -> None:
    done = container.start("kit", "status", user="12345")

    assert done.returncode == 0, done.stderr
    assert "applied: 5 of 5 files." in done.stdout


def test_doctor_is_of_use_in_an_image_without_npu_smi(container: Container) -> None:
    done = container.start("kit", "doctor")

    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert "patch-set: applied: 5 of 5 files." in " ".join(done.stdout.split())
    assert "npu-smi: there is no npu-smi" in done.stdout
    assert "PROBLEM  devices: 0 cards" in done.stdout


def test_a_revert_gives_back_the_pristine_files(container: Container) -> None:
    done = container.start("kit", "revert")

    assert done.returncode == 0, done.stderr
    assert {name: sha256(container.root / name) for name in PRISTINE} == PRISTINE
    assert not (container.root / NEW).exists()


def test_after_a_revert_the_kit_can_apply_again(container: Container) -> None:
    container.start("kit", "revert")

    done = container.start("kit", "apply")

    assert done.returncode == 0, done.stderr
    assert container.start("kit", "verify", "--fast").returncode == 0
