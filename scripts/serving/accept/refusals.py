# SPDX-License-Identifier: Apache-2.0
"""What can be known to be wrong before the first phase: each ends the run before anything is written."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from patchkit.errors import Refused
from patchkit.release import Release
from patchkit.target import Target
from serving import bounded
from serving.findings import Finding, Severity
from serving.machine import doctor
from serving.machine.host import Host
from serving.model import checkpoint
from serving.model.checkpoint import Report
from serving.start import arguments as command_line

from .device import Device, Found

_IN_USE = "card-processes"
_PARALLEL = ("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size")
_KEPT_FREE = 1 << 30


def require_model(model: Path) -> Report:
    """The folder holds a whole model.

    Raises:
        Refused: by the first problem that ``check-model`` names.
    """
    found = checkpoint.check(model)
    problems = [finding for finding in found.findings if finding.severity is Severity.PROBLEM]
    if problems:
        raise Refused(_first(model, problems), f"{{kit}} check-model {shlex.quote(str(model))}")
    return found


def _first(model: Path, problems: Sequence[Finding]) -> str:
    first = problems[0]
    others = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    return f"{model} cannot be served: {first.subject} {first.what}{others}"


def cards_wanted(words: Sequence[str]) -> int:
    """How many cards a command line of ``vllm serve`` takes."""
    wanted = 1
    for name in _PARALLEL:
        text = command_line.value(words, name)
        wanted *= int(text) if text.isdecimal() and len(text) < 6 else 1
    return max(wanted, 1)


def require_device(found: Found, wanted: int, profile: str, again: Callable[[str], str]) -> None:
    """There is something to compute on, and enough of it. ``again`` types the command with more options.

    Raises:
        Refused: no card, or too few.
    """
    if found.device is Device.NONE:
        seen = "npu-smi shows no card" if found.table else "there is no npu-smi that shows a card"
        raise Refused(
            f"{seen}, the vLLM here is no CPU build, and the phases asked for start servers",
            again("--only ground"),
        )
    if found.device is Device.CARDS and found.cards < wanted:
        raise Refused(
            f"npu-smi shows {found.name}, and the profile {profile} takes {wanted} cards",
            again("--profile NAME") + "    # one for so many",
        )


def require_idle(found: Found, host: Host, release: Release, target: Target) -> None:
    """Nobody else is on the cards, as the doctor sees it.

    Raises:
        Refused: it names who is, or how much memory is in use.
    """
    if found.device is not Device.CARDS:
        return
    others = frozenset(name for name, _ in doctor.checks()) - {_IN_USE}
    for item in doctor.examine(host, release, target, others).findings:
        if item.check.name == _IN_USE and item.finding.severity in {Severity.PROBLEM, Severity.WARNING}:
            raise Refused(f"the cards are in use: {item.finding.what}", f"{item.finding.cure}; {{again}}")


def require_room(out: Path, host: Host, needed: int) -> None:
    """There is room on the disk for what is recorded.

    Raises:
        Refused: less than that and 1 GiB.
    """
    space = host.space(str(out.absolute()))
    if space and space.free < needed + _KEPT_FREE:
        free, wanted = space.free / 2**30, (needed + _KEPT_FREE) / 2**30
        raise Refused(
            f"{out} has {free:.1f} GiB free, and {wanted:.1f} GiB are wanted", "give another: --out DIR"
        )


def require_data(folder: Path | None) -> None:
    """The folder of --data is there.

    Raises:
        Refused: it is no folder.
    """
    if folder and not folder.is_dir():
        what = "is no folder" if bounded.exists(folder) else "is not there"
        raise Refused(f"--data {folder} {what}", "give the folder with the question files: --data DIR")
