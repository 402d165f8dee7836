# SPDX-License-Identifier: Apache-2.0
"""CANN, the libraries between torch_npu and the driver, and the variables by which they are found."""

from __future__ import annotations

import re
from collections.abc import Iterable

from serving.findings import Finding

from .. import reference
from ..diagnosis import Check, Group, not_looked_at, ok, problem, warning
from ..patient import Patient
from .machine import hal_folder

_HOMES = ("/usr/local/Ascend/ascend-toolkit/latest", "/usr/local/Ascend/cann")
_ATB = "/usr/local/Ascend/nnal/atb"
_VERSION = re.compile(r"^[Vv]ersion=(\S{1,40})", re.MULTILINE)
_SOURCE = "source /usr/local/Ascend/ascend-toolkit/set_env.sh && source /usr/local/Ascend/nnal/atb/set_env.sh"
_DEVICE_ID = re.compile(r"\d{1,3}", re.ASCII)


def _home(patient: Patient) -> str:
    """The folder of CANN: where the environment says, else where the installer puts it. "" if nowhere."""
    named = [patient.host.variable(name) for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")]
    folders = [*filter(None, named), *_HOMES]
    return next((folder for folder in folders if patient.host.is_folder(folder)), "")


def _cann(patient: Patient) -> Iterable[Finding]:
    home = _home(patient)
    if not home:
        yield problem(
            f"no CANN in {' or '.join(_HOMES)}",
            expected=f"CANN {reference.CANN}",
            why="torch_npu cannot be imported without its libraries",
            cure="start a container of the image vllm-ascend:v0.20.2rc1",
        )
        return
    yield _version(_read_version(patient, home), home)
    if not patient.host.names(f"{home}/opp"):
        yield problem(
            f"no operators in {home}/opp",
            expected="the operator package of CANN (910b-ops)",
            why="the first operator of the first forward pass finds no kernel",
            cure=f"bash Ascend-cann-910b-ops_{reference.CANN}_linux-{patient.host.machine}.run --install",
        )
    if not _atb_folder(patient):
        yield problem(
            f"no libatb.so in {_ATB}",
            expected=f"NNAL {reference.CANN}",
            why="vllm-ascend's worker loads it at start-up",
            cure=f"bash Ascend-cann-nnal_{reference.CANN}_linux-{patient.host.machine}.run --install",
        )


def _read_version(patient: Patient, home: str) -> str:
    info = "ascend_toolkit_install.info"
    paths = (f"{home}/{patient.host.machine}-linux/{info}", f"{home}/{info}", f"{home}/opp/version.info")
    texts = (patient.host.text(path) for path in paths)
    match = next((match for text in texts if text and (match := _VERSION.search(text))), None)
    return match[1] if match else ""


def _version(version: str, home: str) -> Finding:
    if version == reference.CANN:
        return ok(f"CANN {version} in {home}")
    return warning(
        f"CANN {version or '(version unknown)'} in {home}",
        expected=f"CANN {reference.CANN}",
        why="vllm-ascend 0.20.2rc1 names exactly that one, and its operators were compiled against it",
        cure="start a container of the image vllm-ascend:v0.20.2rc1",
    )


def _atb_folder(patient: Patient) -> str:
    host = patient.host
    homes = [host.variable("ATB_HOME_PATH")] if host.variable("ATB_HOME_PATH") else []
    homes += [f"{_ATB}/latest/atb/{name}" for name in host.names(f"{_ATB}/latest/atb")]
    return next((f"{home}/lib" for home in homes if host.exists(f"{home}/lib/libatb.so")), "")


def _cann_variables(patient: Patient) -> Iterable[Finding]:
    host, home = patient.host, _home(patient)
    if not home:
        return [not_looked_at("there is no CANN (see cann)")]
    missing = [
        f"{name}={host.variable(name)} is no folder" if host.variable(name) else f"{name} is unset"
        for name in ("ASCEND_HOME_PATH", "ASCEND_OPP_PATH")
        if not host.variable(name) or not host.is_folder(host.variable(name))
    ]
    missing += _not_on_the_path(patient, home)
    if not missing:
        return [ok(f"ASCEND_HOME_PATH={host.variable('ASCEND_HOME_PATH')}, and its libraries are found")]
    return [
        problem(
            "; ".join(missing),
            expected="what CANN's and NNAL's set_env.sh export",
            why="torch_npu stops with: libhccl.so (or libatb.so): cannot open shared object file",
            cure=_SOURCE,
        )
    ]


def _not_on_the_path(patient: Patient, home: str) -> list[str]:
    """The libraries that are there, but where the loader does not look."""
    host = patient.host
    places = {
        "libhccl.so": f"{home}/lib64",
        "libatb.so": _atb_folder(patient),
        "libascend_hal.so": hal_folder(patient),
    }
    searched = [entry for entry in host.variable("LD_LIBRARY_PATH").split(":") if entry]
    configured = [f"/etc/ld.so.conf.d/{name}" for name in host.names("/etc/ld.so.conf.d")]
    for path in ["/etc/ld.so.conf", *configured]:
        searched += [line.strip() for line in (host.text(path) or "").splitlines() if line.startswith("/")]
    return [
        f"{library} is in {folder}, which is not on LD_LIBRARY_PATH"
        for library, folder in places.items()
        if folder and host.exists(f"{folder}/{library}")
        if not any(host.exists(f"{entry}/{library}") for entry in searched)
    ]


def _visible_devices(patient: Patient) -> Iterable[Finding]:
    name = "ASCEND_RT_VISIBLE_DEVICES"
    value = patient.host.environment.get(name)
    if value is None:
        return [ok(f"{name} is unset: all cards")]
    ids = [part.strip() for part in value.split(",")]
    wanted = ",".join(str(number) for number in range(reference.CARDS))
    if not all(_DEVICE_ID.fullmatch(part) for part in ids):
        return [
            problem(
                f"{name}={value}",
                expected=f"numbers with commas between them, as in {wanted}",
                why="neither CANN nor vllm-ascend reads ranges or names here; cards are lost without a word",
                cure=f"export {name}={wanted}",
            )
        ]
    found = [_bad_ids(name, ids, wanted, patient), _too_few_ids(name, ids, wanted)]
    return [one for one in found if one] or [ok(f"{name}={value}")]


def _bad_ids(name: str, ids: list[str], wanted: str, patient: Patient) -> Finding | None:
    chips = len(patient.cards.chips) if patient.cards else None
    beyond = [part for part in ids if chips is not None and int(part) >= chips]
    twice = sorted({part for part in ids if ids.count(part) > 1})
    if not beyond and not twice:
        return None
    wrong = f"there is no card {', '.join(beyond)}" if beyond else f"card {', '.join(twice)} is named twice"
    return problem(
        f"{name}={','.join(ids)}: {wrong}",
        expected=f"numbers from 0 to {chips - 1}, each once" if chips else "each number once",
        why="in a container the cards are numbered from 0, whatever the host calls them; CANN refuses others",
        cure=f"export {name}={wanted}",
    )


def _too_few_ids(name: str, ids: list[str], wanted: str) -> Finding | None:
    if len(set(ids)) >= reference.CARDS:
        return None
    return problem(
        f"{name}={','.join(ids)} leaves {len(set(ids))} cards",
        expected=f"{reference.CARDS} cards",
        why=f"the weights take {reference.WEIGHTS_GIB_PER_CARD} GiB on each of {reference.CARDS} cards",
        cure=f"export {name}={wanted}",
    )


CHECKS = (
    Check("cann", f"CANN {reference.CANN}, its operators, NNAL", Group.CARDS, _cann),
    Check("cann-variables", "what set_env.sh exports is in this environment", Group.CARDS, _cann_variables),
    Check("visible-devices", "ASCEND_RT_VISIBLE_DEVICES names 8 cards", Group.CARDS, _visible_devices),
)
