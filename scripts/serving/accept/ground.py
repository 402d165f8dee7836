# SPDX-License-Identifier: Apache-2.0
"""The phase ``ground``: which machine, sets, packages and model folder the rest stands on."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

from patchkit import report, state, verification_report, verify
from patchkit.state import SetState
from patchkit.verify import Check, Level, Result, Verification
from serving.findings import Severity, counted
from serving.machine import doctor
from serving.model import checkpoint

from . import device
from .device import Device
from .phase import Context, Step, Verdict, not_run, quoted

_NOT_OURS = frozenset({"serve-port"})
"""Checks of the doctor about a server that somebody else starts: ours takes a free port."""

_DRIVER = "/usr/local/Ascend/driver/version.info"


def steps(context: Context) -> Iterator[Step]:
    """Each is made anew: a machine changes between two runs, and all of it takes a minute."""
    yield _sets(context)
    yield from _verified(context)
    yield _versions(context)
    yield _cards(context)
    yield _doctor(context)
    yield _model(context)


def _kit(context: Context, verb: str, *words: str | Path) -> str:
    options = f" {context.typed.options}" if context.typed.options else ""
    return f"{context.typed.kit} {quoted(verb, *words)}{options}"


def _sets(context: Context) -> Step:
    found = state.inspect(context.release, context.target)
    applied = [status.name for status in found.present]
    fine = found.state in {SetState.APPLIED, SetState.NATIVE}
    return Step(
        "ground.sets",
        Verdict.PASSED if fine else Verdict.FAILED,
        report.summary(found),
        {"release": context.release.id, "sets": applied},
        (_kit(context, "status"),),
    )


def _verified(context: Context) -> Iterator[Step]:
    found = verify.verify(context.release, context.target, frozenset(Level))
    text = [verification_report.checks(found), verification_report.verdict(found)]
    (context.folder / "verify.txt").write_text("\n\n".join(text) + "\n", "utf-8")
    for level in Level:
        yield _level(level, found, _kit(context, "verify"))


def _level(level: Level, found: Verification, command: str) -> Step:
    name = f"ground.verify-{level.value}"
    checks = [check for check in found.checks if check.level is level]
    count = {result: sum(check.result is result for check in checks) for result in Result}
    figures = {result.value.replace(" ", "_"): number for result, number in count.items()}
    bad = next((check for check in checks if check.result is Result.FAILED), None)
    if bad:
        return Step(name, Verdict.FAILED, f"{bad.subject}: {bad.detail}", figures, (command,), (bad.subject,))
    if not count[Result.PASSED]:
        return not_run(name, _reason(checks), (command,))
    unseen = f", {count[Result.NOT_RUN]} not run" if count[Result.NOT_RUN] else ""
    sentence = f"{counted(count[Result.PASSED], 'check')} passed{unseen}"
    return Step(name, Verdict.PASSED, sentence, figures, (command,))


def _reason(checks: list[Check]) -> str:
    return checks[0].detail if checks else "this release has the model by itself"


def _versions(context: Context) -> Step:
    found = device.look(context.host, context.python).versions
    for name, location in context.target.locations.items():
        found[name.replace("_", "-")] = location.version or found.get(name.replace("_", "-"), "unknown")
    found |= {"kernel": platform.release(), "architecture": context.host.machine}
    found |= _of_machine(context)
    wanted = ("vllm", "vllm-ascend", "torch", "torch-npu", "transformers")
    sentence = ", ".join(f"{name} {found[name]}" for name in wanted if name in found)
    return Step("ground.versions", Verdict.PASSED, sentence, {"versions": dict(sorted(found.items()))})


def _of_machine(context: Context) -> Iterator[tuple[str, str]]:
    """System, driver, processors and memory; what cannot be read is left out."""
    texts = {
        "system": ("/etc/os-release", "PRETTY_NAME="),
        "driver": (_DRIVER, "Version="),
        "memory": ("/proc/meminfo", "MemTotal:"),
    }
    for name, (file, key) in texts.items():
        lines = (context.host.text(file) or "").splitlines()
        found = next((line.removeprefix(key).strip(' "') for line in lines if line.startswith(key)), "")
        if found:
            yield name, found
    yield "processors", str(os.cpu_count())


def _cards(context: Context) -> Step:
    found = device.look(context.host, context.python)
    if found.table is None or not found.table.chips:
        why = "a CPU build of vLLM" if context.device is Device.CPU else "npu-smi shows no card"
        return not_run("ground.cards", f"no card: {why}", ("npu-smi info",))
    (context.folder / "npu-smi.txt").write_text(context.host.npu_smi_info.text, "utf-8")
    ill = [chip for chip in found.table.chips if chip.health != "OK"]
    used = [round(chip.used_mib / 1024, 2) for chip in found.table.chips]
    figures = {"cards": found.cards, "used_gib": used, "npu_smi": found.table.version}
    said = ", ".join(f"card {chip.card} says {chip.health}" for chip in ill)
    verdict = Verdict.FAILED if ill else Verdict.PASSED
    return Step("ground.cards", verdict, f"{found.name}; {said or 'all healthy'}", figures, ("npu-smi info",))


def _doctor(context: Context) -> Step:
    name = "ground.doctor"
    command = _kit(context, "doctor", "--model", context.model)
    found = doctor.examine(context.host, context.release, context.target, _NOT_OURS, model=context.model)
    (context.folder / "doctor.txt").write_text(doctor.text(found, context.typed) + "\n", "utf-8")
    problems, warnings = found.of(Severity.PROBLEM), found.of(Severity.WARNING)
    named = ", ".join(dict.fromkeys(item.check.name for item in problems or warnings))
    figures = {"problems": len(problems), "warnings": len(warnings)}
    if context.device is not Device.CARDS:
        why = f"it looks at a machine with cards, and this one has none ({counted(len(problems), 'problem')})"
        return not_run(name, why, (command,))
    if problems:
        return Step(name, Verdict.FAILED, f"problems in {named}: see doctor.txt", figures, (command,))
    if warnings:
        return Step(name, Verdict.FINDING, f"warnings in {named}: see doctor.txt", figures, (command,))
    return Step(name, Verdict.PASSED, "no problem and no warning", figures, (command,))


def _model(context: Context) -> Step:
    found = checkpoint.check(context.model)
    (context.folder / "check-model.txt").write_text(checkpoint.text(found, context.typed) + "\n", "utf-8")
    warnings = [item for item in found.findings if item.severity is Severity.WARNING]
    verdict = Verdict.FAILED if found.failed else Verdict.FINDING if warnings else Verdict.PASSED
    first = f"; {warnings[0].subject} {warnings[0].what}" if warnings else ""
    sentence = (
        f"{found.tensors} tensors in {counted(found.shards, 'shard')}, {found.bytes / 2**30:.2f} GiB{first}"
    )
    figures = {"tensors": found.tensors, "shards": found.shards, "checkpoint_gib": found.bytes / 2**30}
    return Step("ground.model", verdict, sentence, figures, (_kit(context, "check-model", context.model),))
