# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the doctor's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchkit.errors import KitError
from patchkit.release import Release
from patchkit.target import Target
from serving.findings import Finding
from serving.machine import doctor
from unit.serving import machines
from unit.serving.machines import Machine, See


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine as it should be."""
    return machines.build(tmp_path / "machine")


@pytest.fixture
def installed(tmp_path: Path, small_set: Release, monkeypatch: pytest.MonkeyPatch) -> Target:
    """The small set, applied, and a vllm command that runs with the same Python."""
    found = machines.installation(tmp_path / "python", small_set)
    assert found.python
    commands = tmp_path / "commands"
    machines.vllm_command(commands, found.python)
    monkeypatch.setenv("PATH", machines.path_of(commands))
    return found


@pytest.fixture
def see(machine: Machine, installed: Target, small_set: Release) -> See:
    """What one check says about the machine as the test has left it."""

    def run(
        check: str,
        target: Target | KitError = installed,
        port: int = 8000,
        model: Path | None = None,
    ) -> list[Finding]:
        others = frozenset(name for name, _ in doctor.checks()) - {check}
        found = doctor.examine(machine.host, small_set, target, others, port=port, model=model)
        return [finding.finding for finding in found.findings if finding.check.name == check]

    return run
