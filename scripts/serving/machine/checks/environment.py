# SPDX-License-Identifier: Apache-2.0
"""Environment variables: what the guide sets, what breaks this model, what does nothing any more."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from patchkit.state import MAX_SOURCE_BYTES
from patchkit.target import Target
from serving.findings import Finding, Severity

from .. import reference
from ..diagnosis import Check, Group, finding, not_looked_at, note, ok, problem, warning
from ..npu_smi import Family
from ..patient import Patient

_MOST_THREADS = 10
_NUMBER = re.compile(r"\s*[+-]?\d{1,9}\s*", re.ASCII)
_TRUE = frozenset({"1", "on", "yes", "true"})


@dataclass(frozen=True)
class Rule:
    """One variable, and when which of its values is worth a word. Read off the sources at this tag."""

    variable: str
    applies: Callable[[str], bool]
    severity: Severity
    expected: str
    why: str
    cure: str


def _number(value: str) -> int | None:
    return int(value) if _NUMBER.fullmatch(value) else None


def _is_on(value: str) -> bool:
    return bool(_number(value))


def _is_set(value: str) -> bool:
    return bool(value)


def _is_no_number(value: str) -> bool:
    return _number(value) is None


def _limits_splitting(value: str) -> bool:
    return "max_split_size_mb" in value or "garbage_collection_threshold" in value


def _expands(value: str) -> bool:
    return "expandable_segments:True" in value


BREAKS_THE_MODEL = (
    Rule(
        "VLLM_ASCEND_ENABLE_FLASHCOMM1",
        _is_on,
        Severity.PROBLEM,
        "unset, or 0",
        "FlashComm1 is broken for this model in this release",
        "unset VLLM_ASCEND_ENABLE_FLASHCOMM1",
    ),
    Rule(
        "VLLM_ASCEND_FLASHCOMM2_PARALLEL_SIZE",
        _is_on,
        Severity.WARNING,
        "unset, or 0",
        "FlashComm2 wants FlashComm1 beside it, which is broken for this model; it was not tried",
        "unset VLLM_ASCEND_FLASHCOMM2_PARALLEL_SIZE",
    ),
    Rule(
        "ASCEND_LAUNCH_BLOCKING",
        lambda value: value == "1",
        Severity.PROBLEM,
        "unset, or 0",
        "vllm-ascend stops with: ACL graph is incompatible with ASCEND_LAUNCH_BLOCKING=1",
        "unset ASCEND_LAUNCH_BLOCKING",
    ),
    Rule(
        "VLLM_PORT",
        _is_no_number,
        Severity.PROBLEM,
        "unset, or a number",
        "Kubernetes sets it for a service named vllm, and vLLM takes it for its own internal port and stops",
        "unset VLLM_PORT    # Kubernetes: enableServiceLinks: false, or another service name",
    ),
    Rule(
        "VLLM_PLUGINS",
        lambda value: "ascend" not in value.split(","),
        Severity.PROBLEM,
        "unset, or a list with ascend in it",
        "vLLM loads the named plugins alone, so it finds no NPU platform",
        "unset VLLM_PLUGINS",
    ),
)

# vllm_ascend/envs.py turns these into int() whenever it is asked for any of them.
INTEGERS = (
    "VLLM_ASCEND_ENABLE_MATMUL_ALLREDUCE",
    "VLLM_ASCEND_ENABLE_FLASHCOMM1",
    "VLLM_ASCEND_FLASHCOMM2_PARALLEL_SIZE",
    "VLLM_ASCEND_ENABLE_MLAPO",
    "VLLM_ASCEND_ENABLE_NZ",
    "VLLM_ASCEND_ENABLE_CONTEXT_PARALLEL",
    "VLLM_ASCEND_ENABLE_FUSED_MC2",
    "VLLM_ASCEND_BALANCE_SCHEDULING",
)

WITHOUT_EFFECT = (
    Rule(
        "VLLM_ASCEND_ENABLE_PREFETCH_MLP",
        _is_set,
        Severity.WARNING,
        "unset",
        "nothing in this release reads it; its successor, weight_prefetch_config in --additional-config, is "
        "broken for this model",
        "unset VLLM_ASCEND_ENABLE_PREFETCH_MLP",
    ),
    Rule(
        "TASK_QUEUE_ENABLE",
        lambda value: value == "1",
        Severity.NOTE,
        "nothing to do",
        "the image sets it already",
        "",
    ),
    Rule(
        "PYTORCH_NPU_ALLOC_CONF",
        lambda value: value == "expandable_segments:True",
        Severity.NOTE,
        "nothing to do",
        "vllm-ascend sets it by itself",
        "",
    ),
    Rule(
        "CUDA_VISIBLE_DEVICES",
        _is_set,
        Severity.NOTE,
        "ASCEND_RT_VISIBLE_DEVICES",
        "it chooses no NPU",
        "export ASCEND_RT_VISIBLE_DEVICES=0,1,2,3,4,5,6,7",
    ),
)

MEMORY = (
    Rule(
        "PYTORCH_NPU_ALLOC_CONF",
        lambda value: _limits_splitting(value) and _expands(value),
        Severity.PROBLEM,
        "expandable_segments:True alone",
        "torch_npu takes max_split_size_mb or garbage_collection_threshold only without expandable segments",
        "unset PYTORCH_NPU_ALLOC_CONF",
    ),
    Rule(
        "PYTORCH_NPU_ALLOC_CONF",
        lambda value: (
            (_limits_splitting(value) and not _expands(value)) or "expandable_segments:False" in value
        ),
        Severity.WARNING,
        "expandable_segments:True",
        "without expandable segments memory splinters, and long prompts run out of it early",
        "unset PYTORCH_NPU_ALLOC_CONF    # vllm-ascend then sets expandable_segments:True",
    ),
)


def _judge(patient: Patient, rules: Iterable[Rule]) -> list[Finding]:
    values = patient.host.environment
    return [
        finding(rule.severity, f"{rule.variable}={values[rule.variable]}", rule.expected, rule.why, rule.cure)
        for rule in rules
        if rule.variable in values and rule.applies(values[rule.variable])
    ]


def _model_variables(patient: Patient) -> Iterable[Finding]:
    found = [*_judge(patient, BREAKS_THE_MODEL), *_fused_mc2(patient), *_no_integers(patient)]
    return found or [ok("none is set that breaks this model")]


def _fused_mc2(patient: Patient) -> Iterator[Finding]:
    """Only the A3 branch of vllm_ascend/ascend_forward_context.py chooses the fused operator."""
    name = "VLLM_ASCEND_ENABLE_FUSED_MC2"
    value = patient.host.variable(name)
    if not _is_on(value):
        return
    is_a2 = patient.families == {Family.A2}
    say = warning if is_a2 else problem
    yield say(
        f"{name}={value}",
        expected="unset, or 0",
        why="the fused operator computes plain SwiGLU without the clamp: wrong numbers in layers 43 and 44, "
        "and no error" + ("; a 910B ignores it, a 910C would not" if is_a2 else ""),
        cure=f"unset {name}",
    )


def _no_integers(patient: Patient) -> Iterator[Finding]:
    for name in INTEGERS:
        value = patient.host.environment.get(name)
        if value is not None and _is_no_number(value):
            yield problem(
                f"{name}={value}",
                expected="0 or 1",
                why="vllm-ascend reads it as a number: ValueError: invalid literal for int() at start-up",
                cure=f"unset {name}",
            )


def _dead_variables(patient: Patient) -> Iterable[Finding]:
    found = [*_judge(patient, WITHOUT_EFFECT), *_unread(patient)]
    return found or [ok("none is set that does nothing")]


_SERVICE_LINK = re.compile(r"_(?:SERVICE_(?:HOST|PORT)|PORT)(?:_\w+)?$")
"""What Kubernetes makes of a service named vllm-something: VLLM_SOMETHING_SERVICE_HOST and the like."""


_HIDDEN = "(not shown)"


def _is_secret(name: str) -> bool:
    """A report is pasted into tickets: VLLM_API_KEY and the like stay out of it."""
    return any(word in name for word in ("KEY", "TOKEN", "SECRET", "PASSWORD"))


def _unread(patient: Patient) -> Iterator[Finding]:
    """Variables named for vLLM that no source file of the two packages mentions."""
    spoken_of = {rule.variable for rule in (*WITHOUT_EFFECT, *BREAKS_THE_MODEL)} | {*INTEGERS}
    names = {
        name
        for name in patient.host.environment
        if name.startswith("VLLM_") and name not in spoken_of and not _SERVICE_LINK.search(name)
    }
    if not names:
        return
    if not isinstance(patient.target, Target):
        yield not_looked_at(
            f"whether anything reads {', '.join(sorted(names))}: the installation was not found"
        )
        return
    folders = [location.folder for location in patient.target.locations.values()]
    for name in sorted(names - _mentioned(names, folders)):
        yield warning(
            f"{name}={_HIDDEN if _is_secret(name) else patient.host.variable(name)}",
            expected="unset",
            why="no source file of the installed releases has it: misspelt, or of another one",
            cure=f"unset {name}",
        )


def _mentioned(names: set[str], folders: Iterable[Path]) -> set[str]:
    """Those of the names that stand as a whole word in some Python file below the folders."""
    wanted = {name.encode("utf-8", "surrogateescape") for name in names}
    found: set[bytes] = set()
    for path in (path for folder in folders for path in _sources(folder)):
        if found == wanted:
            break
        try:
            if path.stat().st_size > MAX_SOURCE_BYTES:
                continue
            text = path.read_bytes()
        except OSError:
            continue
        found |= {name for name in wanted - found if re.search(rb"\b" + re.escape(name) + rb"\b", text)}
    return {name.decode("utf-8", "surrogateescape") for name in found}


def _sources(folder: Path) -> Iterator[Path]:
    """envs.py first: there nearly every name is found."""
    yield folder / "envs.py"
    for parent, _, names in os.walk(folder):
        yield from (Path(parent, name) for name in names if name.endswith(".py"))


def _memory_variables(patient: Patient) -> Iterable[Finding]:
    return _judge(patient, MEMORY) or [ok("PYTORCH_NPU_ALLOC_CONF is unset, or as vllm-ascend has it")]


def _threads(patient: Patient) -> Iterable[Finding]:
    name = "OMP_NUM_THREADS"
    value = patient.host.environment.get(name)
    if value is None:
        return [ok(f"{name} is unset: vLLM takes 1")]
    number = _number(value)
    if number is not None and 1 <= number <= _MOST_THREADS:
        return [ok(f"{name}={value}")]
    return [
        warning(
            f"{name}={value}",
            expected=f"1 (the image), at most {_MOST_THREADS}",
            why=f"each of {reference.CARDS} workers starts that many threads, and all want the same cores"
            if number
            else "it is no usable number, so each worker may start one thread a core",
            cure=f"export {name}=1",
        )
    ]


# --- LD_PRELOAD and jemalloc --------------------------------------------------------

_JEMALLOC = "libjemalloc"


def _preload(patient: Patient) -> Iterable[Finding]:
    """ld.so takes colons and spaces alike; an entry without a slash it looks for by itself."""
    host = patient.host
    entries = [entry for entry in re.split(r"[:\s]+", host.variable("LD_PRELOAD")) if entry]
    absent = [entry for entry in entries if "/" in entry and not host.exists(entry)]
    if absent:
        return [_absent_preload(patient, entries, absent)]
    if any(_JEMALLOC in entry for entry in entries):
        return [ok(f"LD_PRELOAD={':'.join(entries)}")]
    there = _jemalloc(patient)
    if not there:
        return [ok("jemalloc is neither installed nor asked for")]
    return [
        note(
            f"{there} is there, but not in LD_PRELOAD",
            why="the image sets it in ~/.bashrc, which only an interactive shell reads; it saves host memory",
            cure=f"export LD_PRELOAD={':'.join([there, *entries])}",
        )
    ]


def _absent_preload(patient: Patient, entries: list[str], absent: list[str]) -> Finding:
    there = _jemalloc(patient)
    replaced = [there if entry in absent and _JEMALLOC in entry else entry for entry in entries]
    kept = list(dict.fromkeys(entry for entry in replaced if entry and entry not in absent))
    what = (
        f"jemalloc is in {there}"
        if there and any(_JEMALLOC in entry for entry in absent)
        else "nothing replaces it"
    )
    return warning(
        f"LD_PRELOAD names {', '.join(absent)}, which is not there; {what}",
        expected=f"LD_PRELOAD={':'.join(kept)}" if kept else "LD_PRELOAD unset",
        why="every process prints an ld.so error and runs without it; the path differs from system to system",
        cure=f"export LD_PRELOAD={':'.join(kept)}" if kept else "unset LD_PRELOAD",
    )


def _jemalloc(patient: Patient) -> str:
    """Where this system has jemalloc: Ubuntu's path for this processor, or openEuler's. "" if nowhere."""
    paths = (
        f"/usr/lib/{patient.host.machine}-linux-gnu/libjemalloc.so.2",
        "/usr/lib64/libjemalloc.so.2",
    )
    return next((path for path in paths if patient.host.exists(path)), "")


# --- the network --------------------------------------------------------------------

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_LOCAL = ("localhost", "127.0.0.1")


def _proxy(patient: Patient) -> Iterable[Finding]:
    host = patient.host
    proxies = [name for low in _PROXIES for name in (low, low.upper()) if host.variable(name)]
    if not proxies:
        return [ok("no proxy is set")]
    exempt = host.variable("no_proxy") or host.variable("NO_PROXY")
    entries = [entry for entry in re.split(r"[,\s]+", exempt) if entry]
    missing = [name for name in _LOCAL if not {name, "*"} & set(entries)]
    if not missing:
        return [ok(f"{', '.join(proxies)} set, {' and '.join(_LOCAL)} exempt")]
    value = ",".join([*missing, *entries])
    return [
        warning(
            f"{', '.join(proxies)} set, but no_proxy does not name {' and '.join(missing)}",
            expected=f"{','.join(_LOCAL)} in no_proxy",
            why="a request to the server on this machine goes to the proxy, which answers 502, 503 or 504",
            cure=f"export no_proxy={value} NO_PROXY={value}",
        )
    ]


def _offline(patient: Patient) -> Iterable[Finding]:
    host = patient.host
    if host.variable("VLLM_USE_MODELSCOPE").lower() == "true":
        yield note(
            "VLLM_USE_MODELSCOPE=True",
            why="it matters only for a model that is named and not mounted; for a folder leave it out",
            cure="unset VLLM_USE_MODELSCOPE",
        )
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    on = [name for name in names if host.variable(name).lower() in _TRUE]
    if on:
        yield ok(f"{', '.join(on)} set: nothing is fetched, so the model folder must be complete")
        return
    yield note(
        f"{' and '.join(names)} are not set",
        why="without a way out, a missing file costs minutes of connection attempts before the error",
        cure="export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1",
    )


CHECKS = (
    Check(
        "model-variables",
        "no variable that breaks this model or stops the start",
        Group.ENVIRONMENT,
        _model_variables,
    ),
    Check(
        "dead-variables", "no variable that does nothing in this release", Group.ENVIRONMENT, _dead_variables
    ),
    Check("memory-variables", "the allocator's settings", Group.ENVIRONMENT, _memory_variables),
    Check("threads", "OMP_NUM_THREADS", Group.ENVIRONMENT, _threads),
    Check("preload", "LD_PRELOAD and where jemalloc is", Group.ENVIRONMENT, _preload),
    Check("proxy", "a proxy leaves localhost alone", Group.ENVIRONMENT, _proxy),
    Check("offline", "the variables of an offline site", Group.ENVIRONMENT, _offline),
)
