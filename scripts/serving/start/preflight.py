# SPDX-License-Identifier: Apache-2.0
"""What is said before a start: the profile, the flags brought along, and what the machine lacks.

It refuses where the patch set is not in place, and otherwise only tells: whether problems stop
the start is for ``serve.sh`` to say.
"""

from __future__ import annotations

import ipaddress
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchkit import plan, report, state
from patchkit.errors import KitError, Refused
from patchkit.release import Release
from patchkit.state import Installation, SetState
from patchkit.target import Target
from serving import bounded, findings
from serving.capacity import memory
from serving.capacity.plan_request import PlanRequest, VisionMode
from serving.findings import Finding, Severity, counted, problem, warning
from serving.machine import doctor, reference
from serving.machine.host import Host
from serving.model import checkpoint
from serving.typed import PLAIN, Typed

from . import arguments as command_line
from . import flags, needed, profiles
from .flags import Advice, Verdict
from .profiles import Profile

_WIDTH = 110


@dataclass(frozen=True)
class Start:
    """What ``serve.sh`` is about to do. ``arguments`` are the user's own, which win over the profile's."""

    model: Path
    profile: Profile
    host: str
    port: int
    has_key: bool
    arguments: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """What vLLM makes of it, in the order in which it does: of a flag given twice the last counts."""
        own = ("--host", self.host, "--port", str(self.port))
        return (str(self.model), *self.profile.arguments, *own, *self.arguments)


@dataclass(frozen=True)
class Preflight:
    start: Start
    advice: tuple[Advice, ...]
    findings: tuple[Finding, ...]
    """Problems and warnings alone; a problem makes the start pointless."""

    @property
    def problems(self) -> int:
        """What would stop the server or spoil its answers: findings that say so, flags that do not work."""
        flags_at_fault = sum(item.row.verdict is Verdict.DOES_NOT_WORK for item in self.advice)
        return flags_at_fault + sum(item.severity is Severity.PROBLEM for item in self.findings)

    @property
    def failed(self) -> bool:
        return self.problems > 0


def look(
    start: Start,
    host: Host,
    release: Release,
    target: Target,
    ignore: frozenset[str] = frozenset(),
    options: str = "",
) -> Preflight:
    """Everything that is worth a word before this start.

    ``ignore`` names checks of the doctor to leave out, ``options`` names the target on a command line.

    Raises:
        Refused: the base is not applied, or a set that the profile or a flag needs; there is no
            model folder; a second ``--config``; a check to leave out that does not exist.
    """
    installation = state.inspect(release, target)
    require_applied(installation, options)
    needed.require_sets(installation, start.profile, start.words, options)
    _require_folder(start.model)
    _require_one_config(start)
    examination = doctor.examine(host, release, target, ignore, port=_port(start), model=start.model)
    found = (
        *_exposure(start),
        *_of_doctor(examination),
        *_of_folder(start.model),
        *_of_plan(start),
    )
    return Preflight(start, flags.advise((str(start.model), *start.arguments)), found)


def require_applied(found: Installation, options: str) -> None:
    if found.state in {SetState.APPLIED, SetState.NATIVE}:
        return
    plan.require(found, plan.to_apply(found, ()))  # where apply would refuse, its own reason
    raise Refused(report.summary(found).rstrip("."), f"{{kit}} apply {options}".rstrip())


def _require_folder(model: Path) -> None:
    if not bounded.exists(model / "config.json"):
        raise Refused(
            f"{model} holds no config.json, so it is no model folder",
            "MODEL=DIR, the folder with config.json and the *.safetensors files",
        )


def _require_one_config(start: Start) -> None:
    if command_line.has(start.arguments, "--config"):
        raise Refused("vLLM takes one --config, and the profile is it", "PROFILE=FILE.yaml in its place")


def _port(start: Start) -> int:
    found = command_line.value(start.words, "--port")
    return int(found) if found.isdecimal() and len(found) < 6 else start.port


def _exposure(start: Start) -> Iterator[Finding]:
    host = command_line.value(start.words, "--host")
    if start.has_key or command_line.has(start.arguments, "--api-key") or _is_loopback(host):
        return
    what = f"listens on {host} without an API key: whoever reaches port {_port(start)} can use it"
    yield warning("exposed", "open to the network", what, "API_KEY=..., or HOST=127.0.0.1")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _of_doctor(examination: doctor.Examination) -> Iterator[Finding]:
    return _worth_a_word(item.finding for item in examination.findings)


def _of_folder(model: Path) -> Iterator[Finding]:
    """What ``check-model`` says of it: every shard's header is read, no weight."""
    return _worth_a_word(checkpoint.check(model).findings)


def _worth_a_word(findings: Iterable[Finding]) -> Iterator[Finding]:
    return (found for found in findings if found.severity in {Severity.PROBLEM, Severity.WARNING})


def _of_plan(start: Start) -> Iterator[Finding]:
    try:
        plan = memory.plan(checkpoint.load_config(start.model), _request(start.words))
    except bounded.Unreadable:
        return  # the folder's own remarks say so
    except KitError as error:
        yield problem("plan", "plan", error.what, "correct the flag and start again")
        return
    except ValueError as error:
        what = f"a flag's value makes no sense: {error}"
        yield problem("plan", "plan", what, "correct it and start again")
        return
    if plan.failed:
        what = (
            f"by kit plan, not one request of {plan.max_model_len} tokens fits on a {plan.chip.name}; the "
            f"longest is {plan.longest_context(1)}"
        )
        yield problem("does-not-fit", "memory", what, f"--max-model-len {plan.longest_context(1)}")


def _request(words: Sequence[str]) -> PlanRequest:
    """The plan of this very command line. Flags that are absent or no numbers keep its defaults.

    Raises:
        ValueError: a number too long to be one.
    """
    numbers = {
        name: command_line.value(words, f"--{name}") for name in ("tensor-parallel-size", "max-model-len")
    }
    tp = _number(numbers["tensor-parallel-size"]) or 1
    share = command_line.value(words, "--gpu-memory-utilization")
    data = command_line.value(words, "--mm-encoder-tp-mode") == VisionMode.DATA.value
    return PlanRequest(
        cards=max(reference.CARDS, tp),
        tp=tp,
        max_model_len=_number(numbers["max-model-len"]),
        gpu_memory_utilization=float(share) if share else reference.UTILISATION,
        vision=VisionMode.DATA if data else VisionMode.WEIGHTS,
        hybrid_kv=not command_line.has(words, "--disable-hybrid-kv-cache-manager"),
        expert_parallel=command_line.has(words, "--enable-expert-parallel"),
    )


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 10 else None


def text(found: Preflight, typed: Typed = PLAIN) -> str:
    """The findings for a person, those that stop the start first."""
    parts = [profiles.text(found.start.profile)]
    if found.advice:
        parts.append("\n".join(["flags of yours:", *(_wrapped(str(item)) for item in found.advice)]))
    ordered = sorted(found.findings, key=lambda item: item.severity is not Severity.PROBLEM)
    if ordered:
        parts.append("\n".join(findings.lines(ordered, typed)))
    return "\n\n".join([*parts, _verdict(found)])


def _wrapped(advice: str) -> str:
    return textwrap.fill(
        f"  {advice}", _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def _verdict(found: Preflight) -> str:
    warnings = counted(sum(item.severity is Severity.WARNING for item in found.findings), "warning")
    if found.failed:
        return f"NOT READY: {counted(found.problems, 'problem')}, {warnings}."
    return f"ready: no problem, {warnings}."


def as_json(found: Preflight, typed: Typed = PLAIN) -> dict[str, Any]:
    """The same for a program; ``arguments`` is what vLLM makes of profile and flags."""
    return {
        "failed": found.failed,
        "profile": found.start.profile.name,
        "needs": {
            "sets": list(found.start.profile.needs.sets),
            "checkpoint": found.start.profile.needs.checkpoint,
        },
        "arguments": list(found.start.words),
        "advice": flags.as_json(found.advice),
        "findings": [findings.as_json(item, typed) for item in found.findings],
    }
