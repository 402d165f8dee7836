# SPDX-License-Identifier: Apache-2.0
"""What is said before a start, and what stops it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from patchkit import transaction
from patchkit.errors import Refused
from patchkit.release import Release
from patchkit.target import Target
from serving.findings import Severity
from serving.start import preflight, profiles
from serving.start.preflight import Preflight, Start
from serving.typed import Typed
from unit.serving.machines import Machine
from unit.serving.model_folders import ModelFolder


@pytest.fixture
def start(tmp_path: Path) -> Start:
    model = ModelFolder().write(tmp_path / "model")
    return Start(model, profiles.load("bf16-tp8"), "127.0.0.1", 8000, has_key=False)


def subjects(found: Preflight) -> set[str]:
    return {finding.subject for finding in found.findings}


def seen(start: Start, machine: Machine, small_set: Release, installed: Target) -> Preflight:
    return preflight.look(start, machine.host, small_set, installed, options="--root X")


def test_a_set_that_is_not_applied_is_refused_with_the_command_that_helps(
    start: Start, machine: Machine, small_set: Release, installed: Target
) -> None:
    transaction.revert(small_set, installed)
    with pytest.raises(Refused) as refusal:
        seen(start, machine, small_set, installed)
    assert "pristine: none of the 5 files is applied" in str(refusal.value)
    assert refusal.value.next_step == "{kit} apply --root X"


@pytest.mark.parametrize(
    ("host", "has_key", "arguments", "is_open"),
    [
        ("127.0.0.1", False, (), False),
        ("::1", False, (), False),
        ("localhost", False, (), False),
        ("0.0.0.0", False, (), True),
        ("0.0.0.0", True, (), False),
        ("0.0.0.0", False, ("--api-key", "k"), False),
        ("127.0.0.1", False, ("--host", "0.0.0.0"), True),
        ("host.example", False, (), True),
    ],
)
def test_a_server_open_without_a_key_is_named(
    host: str,
    has_key: bool,
    arguments: tuple[str, ...],
    is_open: bool,
    start: Start,
    machine: Machine,
    small_set: Release,
    installed: Target,
) -> None:
    found = seen(
        replace(start, host=host, has_key=has_key, arguments=arguments), machine, small_set, installed
    )
    assert ("open to the network" in subjects(found)) is is_open


def test_what_the_doctor_finds_is_passed_on_and_problems_stop(
    start: Start, machine: Machine, small_set: Release, installed: Target
) -> None:
    host = replace(
        machine.host, environment={**machine.host.environment, "VLLM_ASCEND_ENABLE_FLASHCOMM1": "1"}
    )
    found = preflight.look(start, host, small_set, installed)
    assert found.failed
    assert "FlashComm1 is broken" in preflight.text(found)
    assert "{kit}" not in preflight.text(found, Typed("scripts/kit"))


def test_a_context_that_does_not_fit_stops(
    start: Start, machine: Machine, small_set: Release, installed: Target
) -> None:
    share = replace(
        start, arguments=("-tp", "1", "--max-model-len", "4096", "--gpu-memory-utilization", "0.01")
    )
    found = seen(share, machine, small_set, installed)
    assert [finding.name for finding in found.findings if finding.subject == "memory"] == ["does-not-fit"]
    assert found.failed


def test_a_context_beyond_the_model_stops(
    start: Start, machine: Machine, small_set: Release, installed: Target
) -> None:
    found = seen(start, machine, small_set, installed)  # the profile's 65536, of a model of 4096
    assert [one.severity for one in found.findings if one.subject == "plan"] == [Severity.PROBLEM]
    assert "4096" in preflight.text(found)


@pytest.mark.parametrize("value", ["much", "1e400", "-1", "9" * 5000])
def test_values_that_make_no_sense_are_no_traceback(
    value: str, start: Start, machine: Machine, small_set: Release, installed: Target
) -> None:
    odd = replace(
        start, arguments=("--gpu-memory-utilization", value, "--max-model-len", value, "-tp", value)
    )
    assert isinstance(preflight.text(seen(odd, machine, small_set, installed)), str)


def test_a_second_config_and_an_absent_folder_are_refused(
    start: Start, machine: Machine, small_set: Release, installed: Target, tmp_path: Path
) -> None:
    with pytest.raises(Refused, match="one --config"):
        seen(replace(start, arguments=("--config=x.yaml",)), machine, small_set, installed)
    with pytest.raises(Refused, match="no model folder"):
        seen(replace(start, model=tmp_path / "absent"), machine, small_set, installed)


def test_flags_brought_along_are_answered(
    start: Start, machine: Machine, small_set: Release, installed: Target
) -> None:
    found = seen(replace(start, arguments=("--disable-cascade-attn",)), machine, small_set, installed)
    assert "--disable-cascade-attn has no effect" in preflight.text(found)
    assert preflight.as_json(found)["advice"][0]["verdict"] == "has no effect"


def test_a_flag_that_does_not_work_stops_and_one_without_effect_does_not(
    start: Start, machine: Machine, small_set: Release, installed: Target
) -> None:
    def problems(*arguments: str) -> int:
        return seen(replace(start, arguments=arguments), machine, small_set, installed).problems

    before = problems()
    assert problems("--disable-cascade-attn") == before
    assert problems("--enable-lora") == before + 1
