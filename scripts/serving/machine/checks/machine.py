# SPDX-License-Identifier: Apache-2.0
"""The machine under the container: processor, operating system, NPU devices, driver, npu-smi, chips."""

from __future__ import annotations

import re
from collections.abc import Iterable

from serving.capacity.chips import KEPT_BACK_GIB
from serving.findings import Finding

from .. import reference
from ..diagnosis import Check, Group, not_looked_at, note, ok, problem, warning
from ..npu_smi import Chip, Family
from ..patient import Patient

_MACHINES = ("aarch64", "x86_64")
_SYSTEMS = ("Ubuntu 22.04", "openEuler 24.03")
_MANAGERS = ("davinci_manager", "devmm_svm", "hisi_hdc")
_CARD_DEVICE = re.compile(r"davinci(\d{1,3})", re.ASCII)

_DRIVER = "/usr/local/Ascend/driver"
_HAL = "libascend_hal.so"
_DRIVER_FOLDER = re.compile(r"^Driver_Install_Path_Param=(/\S{1,400})", re.MULTILINE)
_STUBS = "devlib"
"""CANN has a stub of the library in folders of this name, to link against; it drives nothing."""

_DRIVER_VERSION = re.compile(r"^Version\s*=\s*(\S{1,40})", re.MULTILINE | re.IGNORECASE)
_MOUNTS = (
    (f"{_DRIVER}/version.info", "torch_npu and the kit read the driver's version there"),
    ("/usr/local/dcmi", "npu-smi loads its library from there"),
    ("/etc/ascend_install.info", "CANN looks up there where the driver is"),
)

_IN_USE = re.compile(r"-80(?:05|20)\b")
"""npu-smi's codes for a device that another container has (vllm-project/vllm-ascend issue 2698)."""

_FIRST_LINE = 120

_FAMILIES = {
    Family.A3: "the files are the same, but the -a3 image is needed, and the kit was not tried there",
    Family.A5: "vllm-ascend 0.20.2rc1 for it is another build, and the kit was not tried there",
    Family.P310: "its MoE path knows no swiglustep, so layers 43 and 44 would compute wrong numbers",
    Family.FIRST: "vllm-ascend does not support it",
    Family.UNKNOWN: "nothing is known about it",
}
_UNUSABLE = frozenset({Family.P310, Family.FIRST})


def _architecture(patient: Patient) -> Iterable[Finding]:
    machine = patient.host.machine
    if machine in _MACHINES:
        return [ok(machine)]
    return [
        problem(
            machine or "unknown",
            expected=" or ".join(_MACHINES),
            why="vllm-ascend, torch_npu and CANN exist for these two alone",
            cure="docker run --platform linux/arm64 ...",
        )
    ]


def _operating_system(patient: Patient) -> Iterable[Finding]:
    text = patient.host.text("/etc/os-release")
    if text is None:
        return [not_looked_at("/etc/os-release cannot be read")]
    fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    name = " ".join(fields.get(key, "").strip("\"'") for key in ("NAME", "VERSION_ID")).strip()
    if name in _SYSTEMS:
        return [ok(name)]
    return [
        note(
            name or "no name in /etc/os-release",
            expected=" or ".join(_SYSTEMS),
            why="the official images have one of these; others were not tried",
        )
    ]


def _card_devices(patient: Patient) -> list[str]:
    return [name for name in patient.host.names("/dev") if _CARD_DEVICE.fullmatch(name)]


def _devices(patient: Patient) -> Iterable[Finding]:
    host = patient.host
    names = host.names("/dev")
    cards = _card_devices(patient)
    wanted = [f"davinci{number}" for number in range(reference.CARDS)] if len(cards) < reference.CARDS else []
    missing = [name for name in [*wanted, *_MANAGERS] if name not in names]
    if missing:
        return [
            problem(
                f"{len(cards)} cards; missing: {', '.join(f'/dev/{name}' for name in missing)}",
                expected=f"{reference.CARDS} cards /dev/davinci*, and {', '.join(_MANAGERS)}",
                why=f"the weights take {reference.WEIGHTS_GIB_PER_CARD} GiB on each of {reference.CARDS} "
                "cards, and a container sees only the devices that it was started with",
                cure="docker run " + " ".join(f"--device /dev/{name}" for name in missing) + " ...",
            )
        ]
    closed = [name for name in [*cards, *_MANAGERS] if not host.permits(f"/dev/{name}", write=True)]
    if closed:
        return [
            problem(
                f"uid {host.uid} may not open {', '.join(f'/dev/{name}' for name in closed)}",
                expected="read and write permission",
                why="the driver cannot be reached without it",
                cure="docker run --group-add $(stat -c %g /dev/davinci0) ...",
            )
        ]
    return [ok(f"{len(cards)} cards and {', '.join(_MANAGERS)}")]


def _driver(patient: Patient) -> Iterable[Finding]:
    host = patient.host
    folder = hal_folder(patient)
    if not folder:
        yield problem(
            f"no {_HAL} in {_DRIVER}/lib64/driver, nor where LD_LIBRARY_PATH points",
            expected="the host's driver libraries, mounted at the same path",
            why="torch_npu stops with: libascend_hal.so: cannot open shared object file",
            cure=_mount(f"{_DRIVER}/lib64", f"{_DRIVER}/version.info"),
        )
        return
    match = _DRIVER_VERSION.search(host.text(f"{_DRIVER}/version.info") or "")
    yield ok(f"driver {match[1] if match else '(version unknown)'}, {folder}/{_HAL}")
    for path, why in _MOUNTS:
        if not host.exists(path):
            yield warning(
                f"{path} is not there",
                expected="mounted from the host",
                why=why,
                cure=_mount(path),
            )


def _mount(*paths: str) -> str:
    """The options that give a container something of the host's, at the same path."""
    return "docker run " + " ".join(f"-v {path}:{path}" for path in paths) + " ..."


def hal_folder(patient: Patient) -> str:
    """The folder of the driver's own library, "" where only a stub or nothing is."""
    host = patient.host
    named = _DRIVER_FOLDER.search(host.text("/etc/ascend_install.info") or "")
    folders = [f"{_DRIVER}/lib64/driver"]
    folders += [f"{named[1].rstrip('/')}/driver/lib64/driver"] if named else []
    folders += [entry for entry in host.variable("LD_LIBRARY_PATH").split(":") if entry]
    real = (folder.rstrip("/") for folder in folders if _STUBS not in folder)
    return next((folder for folder in real if host.exists(f"{folder}/{_HAL}")), "")


def _npu_smi(patient: Patient) -> Iterable[Finding]:
    host = patient.host
    if not host.npu_smi:
        return [
            warning(
                "there is no npu-smi",
                expected="/usr/local/bin/npu-smi, mounted from the host",
                why="without it nobody sees what is on the cards, and vllm-ascend binds no CPU cores",
                cure=_mount("/usr/local/bin/npu-smi", "/usr/local/dcmi"),
            )
        ]
    output = host.npu_smi_info
    if patient.cards:
        return [ok(f"{host.npu_smi} {patient.cards.version}")]
    said = output.complaint or f"printed no card (exit code {output.exit_code})"
    lines = [line.strip() for line in output.text.splitlines() if line.strip()]
    first = f": {lines[-1][:_FIRST_LINE]}" if lines else ""
    in_use = bool(_IN_USE.search(output.text))
    return [
        problem(
            f"{host.npu_smi} info {said}{first}",
            expected="a table with one row a card",
            why="another container holds these cards, and the driver gives a card to one container at a time"
            if in_use
            else "the driver does not answer, so vLLM will find no card either",
            cure="docker ps" if in_use else "npu-smi info    # on the host",
        )
    ]


def _chips(patient: Patient) -> Iterable[Finding]:
    if patient.cards is None:
        return [not_looked_at("npu-smi printed no table (see npu-smi)")]
    chips = patient.cards.chips
    found = [
        *_unhealthy(chips),
        *(_family(family, chips) for family in Family if family in patient.families - {Family.A2}),
        *_other_build(patient),
        *_small(chips),
        *_few(patient, chips),
    ]
    return found or [_as_expected(chips)]


def _as_expected(chips: tuple[Chip, ...]) -> Finding:
    names = " and ".join(sorted({chip.name for chip in chips}))
    text = f"{len(chips)} x {names}, {min(chip.total_mib for chip in chips)} MB of HBM each"
    if names == reference.CHIP:
        return ok(text)
    return note(
        text,
        expected=f"{reference.CHIP}",
        why="the same family and image; speed and published figures are those of the 910B3",
    )


def _unhealthy(chips: tuple[Chip, ...]) -> Iterable[Finding]:
    bad = [chip for chip in chips if chip.health.upper() != "OK"]
    if bad:
        yield problem(
            ", ".join(f"card {chip.card}: {chip.health}" for chip in bad),
            expected="health OK on every card",
            why="a card in alarm fails under load, and takes the other seven with it",
            cure=f"npu-smi info -t health -i {bad[0].card}",
        )


def _family(family: Family, chips: tuple[Chip, ...]) -> Finding:
    say = problem if family in _UNUSABLE else warning
    names = ", ".join(sorted({chip.name for chip in chips if chip.family is family}))
    return say(
        f"{names}: {family.value}",
        expected=f"{reference.CARDS} x {reference.CHIP}",
        why=_FAMILIES[family],
        cure=f"use a server with {reference.CARDS} x {reference.CHIP}"
        if family is not Family.A3
        else "start a container of the image vllm-ascend:v0.20.2rc1-a3",
    )


def _other_build(patient: Patient) -> Iterable[Finding]:
    built_for = patient.device_type
    others = [family for family in patient.families if family.device_type not in {"", built_for}]
    if built_for and others:
        yield problem(
            f"vllm-ascend was built for {built_for}, the cards are {others[0].value}",
            expected=f"a vllm-ascend built for {others[0].device_type}",
            why="every worker stops with: does not match the installed version's device type",
            cure="start a container of the image for these cards (910B: no suffix, 910C: -a3, 310P: -310p)",
        )


def _small(chips: tuple[Chip, ...]) -> Iterable[Finding]:
    smallest = min(chips, key=lambda chip: chip.total_mib)
    if smallest.total_mib < reference.HBM_MIB:
        yield problem(
            f"card {smallest.card} ({smallest.name}) has {smallest.total_mib} MB of HBM",
            expected=f"{reference.HBM_MIB} MB",
            why=f"the weights alone take {reference.WEIGHTS_GIB_PER_CARD} GiB a card",
            cure=f"use cards with {reference.HBM_MIB} MB (910B3, 910B2, 910B1, 910B4-1)",
        )


def _few(patient: Patient, chips: tuple[Chip, ...]) -> Iterable[Finding]:
    # Where the devices themselves are too few, the check of that name says so.
    if len(chips) < reference.CARDS <= len(_card_devices(patient)):
        yield problem(
            f"npu-smi shows {len(chips)} chips, /dev has {len(_card_devices(patient))}",
            expected=f"{reference.CARDS} in both",
            why="a card that npu-smi does not show is lost to the driver, and tensor parallel "
            f"{reference.CARDS} needs every one",
            cure="npu-smi info    # on the host; a lost card comes back with a reboot, or not at all",
        )


def _card_processes(patient: Patient) -> Iterable[Finding]:
    if patient.cards is None:
        return [not_looked_at("npu-smi printed no table (see npu-smi)")]
    full = [chip for chip in patient.cards.chips if chip.used_mib > _most_in_use(chip)]
    names = "; ".join(
        f"card {process.card}: pid {process.pid} {process.name}, {process.used_mib} MB"
        for process in patient.cards.processes
    )
    if full:
        used = ", ".join(f"card {chip.card} {chip.used_mib} of {chip.total_mib} MB" for chip in full)
        return [
            problem(
                f"memory in use: {used}"
                + (f" ({names})" if names else " (by a process outside this container)"),
                expected=f"no more than {_most_in_use(full[0])} MB in use on a card",
                why=f"at --gpu-memory-utilization {reference.UTILISATION} vLLM stops with: Free memory on "
                "device ... is less than desired GPU memory utilization",
                cure="stop that service, or a worker left over from an earlier start: kill PID",
            )
        ]
    if names:
        return [
            warning(
                names,
                expected="no process on the cards",
                why="a second service on the same cards takes memory and HCCL ports from this one",
                cure="stop that service, or a worker left over from an earlier start: kill PID",
            )
        ]
    return [ok(f"none; at most {max(chip.used_mib for chip in patient.cards.chips)} MB in use on a card")]


def _most_in_use(chip: Chip) -> int:
    """MiB that may be in use before vLLM, at its default utilisation, refuses to start."""
    return round(chip.total_mib - reference.UTILISATION * (chip.total_mib - KEPT_BACK_GIB * 1024))


CHECKS = (
    Check("architecture", "aarch64 or x86_64", Group.CARDS, _architecture),
    Check("operating-system", "one of the official images' systems", Group.CARDS, _operating_system),
    Check("devices", "/dev/davinci0-7, davinci_manager, devmm_svm, hisi_hdc", Group.CARDS, _devices),
    Check("driver", "libascend_hal.so and what else is mounted from the host", Group.CARDS, _driver),
    Check("npu-smi", "it is there and answers", Group.CARDS, _npu_smi),
    Check("chips", "8 healthy 910B3 with 64 GiB, or what others mean", Group.CARDS, _chips),
    Check("card-processes", "nobody else is on the cards", Group.CARDS, _card_processes),
)
