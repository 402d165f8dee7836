# SPDX-License-Identifier: Apache-2.0
"""doctor, check-model, plan and explain as commands: their options, exit codes and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tree
from unit.serving.model_folders import ModelFolder

KIT = tree.Kit(tree.PROJECT)
NO_FOLDER = "/no/such/folder"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small whole model folder."""
    return ModelFolder().write(tmp_path / "model")


def test_doctor_lists_its_checks_by_name(root: Path) -> None:
    run = KIT("doctor", "--list", "--root", root)
    assert run.code == 0
    assert {"patch-set", "devices", "driver", "preload", "user", "hccl-ports"} <= {
        line.split()[0] for line in run.out.splitlines()
    }


def test_doctor_reports_once_and_says_no_on_a_machine_without_cards(root: Path) -> None:
    run = KIT("doctor", "--root", root, "--json")
    answer = json.loads(run.out)
    assert run.code == answer["exit_code"] == 1
    statuses = {finding["name"]: finding["severity"] for finding in answer["findings"]}
    assert statuses["devices"] == "problem" or Path("/dev/davinci0").exists()


def test_doctor_survives_an_interpreter_without_vllm(tmp_path: Path) -> None:
    run = KIT("doctor", "--python", tmp_path / "absent")
    assert run.code == 1
    assert "cannot be run (No such file or directory)" in " ".join(run.out.split())
    assert "shared-memory: " in run.out
    assert "Traceback" not in run.out + run.err


def test_doctor_leaves_out_what_it_is_told_to(root: Path) -> None:
    run = KIT("doctor", "--root", root, "--ignore", "devices", "--ignore", "driver")
    assert run.out.count("left out by --ignore") == 2


def test_doctor_refuses_a_check_that_does_not_exist(root: Path) -> None:
    run = KIT("doctor", "--root", root, "--ignore", "devises")
    assert run.code == 3
    assert "there is no check called devises" in run.err


@pytest.mark.parametrize("verb", ["check-model", "plan"])
def test_a_model_folder_that_is_not_there(verb: str) -> None:
    run = KIT(verb, NO_FOLDER)
    assert run.code == (1 if verb == "check-model" else 3)
    assert NO_FOLDER in run.out + run.err
    assert "Traceback" not in run.err


def test_a_whole_model_folder_can_be_served_and_one_without_a_tensor_cannot(model: Path) -> None:
    assert KIT("check-model", model).code == 0
    broken = ModelFolder()
    del broken.tensors["model.layers.0.self_attn.q_proj.weight"]
    broken.write(model)
    run = KIT("check-model", model, "--json")
    assert run.code == 1
    assert "model.layers.0.self_attn.q_proj.weight" in run.out
    assert json.loads(run.out)["failed"] is True


def test_plan_says_what_fits_and_the_flags_to_type(model: Path) -> None:
    run = KIT("plan", model, "--tp", "2", "--image", "1024x768")
    assert run.code == 0, run.err
    assert "--tensor-parallel-size 2" in run.out
    assert "504" in run.out


def test_plan_says_no_where_nothing_fits(model: Path) -> None:
    run = KIT("plan", model, "--tp", "2", "--hbm", "4", "--max-model-len", "4096", "--json")
    assert run.code == 1
    assert json.loads(run.out)["exit_code"] == 1


def test_plan_of_an_unreadable_config_is_one_sentence(model: Path) -> None:
    tree.write(model / "config.json", b"{")
    run = KIT("plan", model)
    assert run.code == 3
    assert run.err.startswith(f"kit: {model}/config.json ")
    assert f"check-model {model}" in run.err


def test_explain_knows_the_text_that_a_half_patched_start_shows() -> None:
    run = KIT(
        "explain", "AttributeError: 'Step3VLProcessor' object has no attribute '_get_num_multimodal_tokens'"
    )
    assert run.code == 0
    assert "kit apply" in run.out


def test_explain_is_honest_about_an_unknown_text() -> None:
    run = KIT("explain", "the coffee machine is on fire", "--json")
    answer = json.loads(run.out)
    assert run.code == answer["exit_code"] == 1
    assert answer["known"] is False


def test_explain_reads_a_log(tmp_path: Path) -> None:
    log = tree.write(
        tmp_path / "serve.log", b"INFO start\nImportError: libascend_hal.so: cannot open shared object file\n"
    )
    run = KIT("explain", "--log", log)
    assert run.code == 0
    assert "(line 2)" in run.out


def test_explain_of_a_log_that_is_not_there(tmp_path: Path) -> None:
    run = KIT("explain", "--log", tmp_path / "absent")
    assert run.code == 3
    assert "cannot be read (No such file or directory); nothing was changed" in run.err


def test_explain_of_nothing_is_a_usage_error() -> None:
    assert KIT("explain").code == 2


@pytest.mark.parametrize("image", ["1024", "axb", "1024x", ""])
def test_a_picture_size_that_is_none(image: str) -> None:
    run = KIT("plan", NO_FOLDER, "--image", image)
    assert run.code == 2
    assert "expected WIDTHxHEIGHT" in run.err
