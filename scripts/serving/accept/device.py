# SPDX-License-Identifier: Apache-2.0
"""On what the target's vLLM computes: on the cards of this machine, or on its CPU, or on nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from serving.machine import npu_smi, patient
from serving.machine.host import Host
from serving.machine.npu_smi import Table

DISTRIBUTIONS = ("vllm", "vllm-ascend")


class Device(Enum):
    """The values are recorded."""

    CARDS = "cards"
    CPU = "cpu"
    """A CPU build of vLLM: it serves, and nothing of it says anything about a card."""
    NONE = "none"


@dataclass(frozen=True)
class Found:
    device: Device
    cards: int
    name: str
    """ "8 × 910B3", "" without cards."""
    table: Table | None
    versions: dict[str, str]
    """Of the packages around vLLM, by distribution."""


def look(host: Host, python: Path) -> Found:
    """What ``npu-smi`` shows, and else whether vLLM is a CPU build by the rule that is vLLM's own:
    its distribution's version says so. Nothing is imported.
    """
    packages = patient.ask(python, (*DISTRIBUTIONS, *patient.DISTRIBUTIONS))
    versions = dict(packages.versions) if packages else {}
    if packages and packages.python:
        versions["python"] = ".".join(map(str, packages.python))
    table = npu_smi.parse(host.npu_smi_info.text) if host.npu_smi else None
    if table and table.chips:
        return Found(Device.CARDS, len(table.chips), _names(table), table, versions)
    is_cpu_build = "cpu" in versions.get("vllm", "")
    return Found(Device.CPU if is_cpu_build else Device.NONE, 0, "", table, versions)


def _names(table: Table) -> str:
    names = [chip.name for chip in table.chips]
    return ", ".join(f"{names.count(name)} × {name}" for name in sorted(set(names)))
