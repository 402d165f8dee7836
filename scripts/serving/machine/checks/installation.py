# SPDX-License-Identifier: Apache-2.0
"""The five files, the two packages around them, and the Python that runs them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from patchkit import drift, plan, report, state, versions
from patchkit.errors import KitError
from patchkit.manifest import Package
from patchkit.state import Installation, SetState
from patchkit.target import Location, default_interpreter
from serving.findings import Finding

from ..diagnosis import Check, Group, not_looked_at, note, ok, problem, warning
from ..patient import Packages, Patient

_WANTED_PYTHON = (3, 11)
_ACCEPTED_PYTHON = (3, 10)
"""vllm-ascend 0.20.2rc1 takes Python from 3.10 to below 3.12 (its installation page)."""

_IMAGE = "start a container of the image vllm-ascend:v0.20.2rc1"
_NO_TARGET = "the installation was not found (see patch-set)"


class Need(Enum):
    """What becomes of a start with another version of a package, or without it."""

    EXACT = "either breaks it"
    PRESENT = "without it there is none; another version is untried"
    WANTED = "both are untried"


@dataclass(frozen=True)
class Pin:
    """A version that vllm-ascend asks for."""

    name: str
    version: str
    need: Need
    why: str


# vllm-ascend 0.20.2rc1's own requirements (its METADATA). vLLM's wheel asks for torch 2.11, which
# is for CUDA and counts for nothing here.
PINS = (
    Pin("torch", "2.10.0", Need.EXACT, "torch_npu is built against exactly one torch"),
    Pin("torch-npu", "2.10.0", Need.EXACT, "without it vLLM has no NPU platform and stops at start-up"),
    Pin(
        "torchvision",
        "0.25.0",
        Need.PRESENT,
        "its operators are built against one torch, and pictures need them",
    ),
    Pin(
        "transformers", "5.5.3", Need.PRESENT, "the tokenizer patch was written for this one and tried on it"
    ),
    Pin("triton-ascend", "3.2.1", Need.WANTED, "it compiles vllm-ascend's own kernels"),
)


def _patch_set(patient: Patient) -> Iterable[Finding]:
    target = patient.target
    if isinstance(target, KitError):
        yield problem(
            target.what,
            expected="an interpreter that can import vllm and vllm_ascend",
            why="without them there is nothing to patch, and nothing that serves",
            cure=target.next_step.replace("{again}", "{kit} doctor"),
        )
        return
    yield _of_state(state.inspect(patient.release, target))


def _of_state(found: Installation) -> Finding:
    names = {status.name for status in found.present}
    match found.state:
        case SetState.NATIVE:
            return ok(report.summary(found))
        case SetState.UNSUPPORTED:
            return not_looked_at("it is for other releases (see package-versions)")
        case SetState.APPLIED:
            mounted = sum(status.mounted for status in found.chains)
            return ok(report.summary(found) + (f" {mounted} of them are mounted in." if mounted else ""))
        case SetState.PRISTINE | SetState.PARTIAL:
            total = sum(bool(status.chain.height(names)) for status in found.chains)
            return problem(
                report.summary(found),
                expected=f"all {total} files of the set {found.release.id} applied",
                why="; ".join(symptom.text for symptom in found.symptoms) or "the files need one another",
                cure="{kit} apply {options}",
            )
        case SetState.DRIFTED:
            bad = plan.unknown_files(found, names)
            clauses = "; ".join(f"{file.file.path}: {drift.explain(file, found.release)}" for file in bad)
            return problem(
                f"{report.summary(found)} {clauses}",
                expected="each file exactly as upstream published it, or exactly as the set makes it",
                why="the kit changes no file that it does not know, so the model cannot be served",
                cure="{kit} verify {options}",
            )


def _package_versions(patient: Patient) -> Iterable[Finding]:
    target = patient.target
    if isinstance(target, KitError):
        return [not_looked_at(_NO_TARGET)]
    is_native = state.by_version(patient.release, target) is SetState.NATIVE
    pairs = [(package, target.locations[package.import_name]) for package in patient.release.packages]
    return [_package(package, location, is_native) for package, location in pairs]


def _package(package: Package, location: Location, is_native: bool) -> Finding:
    checkout = f", imported from the checkout {location.checkout}" if location.checkout else ""
    found = f"{package.name} {location.version or '(no version)'} in {location.folder}{checkout}"
    if is_native:
        return ok(found)
    if versions.parse(location.version or "") is None:
        return note(found, why="this version string names no release, so the hashes of the files decide")
    if not state.is_other_release(package, location):
        return ok(found)
    return problem(
        found,
        expected=f"{package.name} {' or '.join(package.supported)}",
        why=f"the set fits this release alone; from {package.native_from} on {package.name} needs no set",
        cure=_IMAGE,
    )


def _package_copies(patient: Patient) -> Iterable[Finding]:
    target = patient.target
    if isinstance(target, KitError):
        return [not_looked_at(_NO_TARGET)]
    found = [
        warning(
            f"a second {location.import_name} in {copy}",
            expected=f"{location.import_name} in {location.folder} alone",
            why="the kit changes the imported copy only; started with another Python or PYTHONPATH, the "
            "server would run the unpatched one",
            cure="{kit} status {options}",
        )
        for location in target.locations.values()
        for copy in sorted(_other_copies(patient, location))
    ]
    return found or [ok("each package is there once")]


def _other_copies(patient: Patient, location: Location) -> set[str]:
    """Copies on the interpreter's path, and in the usual places beside it."""
    found = set(location.others)
    for parent in _usual_folders(patient):
        if patient.host.exists(f"{parent}/{location.import_name}/__init__.py"):
            found.add(patient.host.path(f"{parent}/{location.import_name}").resolve())
    return {str(folder) for folder in found if folder != location.folder}


def _usual_folders(patient: Patient) -> Iterator[str]:
    host = patient.host
    yield from (str(package.image_folder.parent) for package in patient.release.packages)
    prefixes = ["/usr", "/usr/local", f"{host.home}/.local"]
    prefixes += [f"/usr/local/{name}" for name in host.names("/usr/local") if name.startswith("python")]
    for library in (f"{prefix}/lib" for prefix in prefixes):
        for python in (name for name in host.names(library) if name.startswith("python")):
            yield f"{library}/{python}/site-packages"
            yield f"{library}/{python}/dist-packages"


def _interpreter(patient: Patient) -> Iterable[Finding]:
    python, packages = patient.interpreter, patient.packages
    if python is None:
        return [not_looked_at("--root names a folder, not an interpreter")]
    if packages is None or packages.python is None:
        return [
            problem(
                f"{python} gives no answer",
                expected="a Python 3.11 that runs",
                why="it is the one that vllm would run with",
                cure=f"{python} --version",
            )
        ]
    return [_python_version(python, packages.python), *_vllm_command(python)]


def _python_version(python: Path, version: tuple[int, ...]) -> Finding:
    found = f"Python {'.'.join(map(str, version))} ({python})"
    if version[:2] == _WANTED_PYTHON:
        return ok(found)
    if version[:2] == _ACCEPTED_PYTHON:
        return note(found, expected="Python 3.11", why="upstream accepts 3.10, the kit was not tried on it")
    return problem(
        found,
        expected="Python 3.11",
        why="vllm-ascend 0.20.2rc1 and its torch_npu have no wheels for another one",
        cure=_IMAGE,
    )


def _vllm_command(python: Path) -> Iterator[Finding]:
    behind = default_interpreter()
    if behind.resolve() != python.resolve():
        yield warning(
            f"the vllm command runs with {behind}, not with {python}",
            expected="one Python for both",
            why="the packages looked at here are not the ones that vllm serve would use",
            cure="{kit} doctor",
        )


def _python_packages(patient: Patient) -> Iterable[Finding]:
    packages = patient.packages
    if packages is None:
        return [not_looked_at(f"{patient.interpreter} gives no answer (see interpreter)")]
    if isinstance(patient.target, KitError) and "torch" not in packages.versions:
        return [not_looked_at(f"{packages.where} has no torch: it is not the Python that serves")]
    pip = f"{patient.interpreter or 'python3'} -m pip"
    odd = [_odd(pin, packages, pip) for pin in PINS if not _fits(pin, packages)]
    if {"triton", "triton-ascend"} <= packages.versions.keys():
        odd.append(_two_tritons(packages, pip))
    return odd or [ok(", ".join(f"{pin.name} {packages.versions[pin.name]}" for pin in PINS))]


def _fits(pin: Pin, packages: Packages) -> bool:
    """Whether it is the release of the pin; a local part (2.10.0+cpu) does not count."""
    return versions.parse(packages.versions.get(pin.name, "")) == versions.parse(pin.version)


def _odd(pin: Pin, packages: Packages, pip: str) -> Finding:
    version = packages.versions.get(pin.name)
    is_bad = pin.need is Need.EXACT or (pin.need is Need.PRESENT and version is None)
    return (problem if is_bad else warning)(
        f"{pin.name} {version}" if version else f"{pin.name} is not installed for {packages.where}",
        expected=f"{pin.name} {pin.version}",
        why=pin.why,
        cure=f"{pip} install --no-deps {pin.name}=={pin.version}",
    )


def _two_tritons(packages: Packages, pip: str) -> Finding:
    return warning(
        f"triton {packages.versions['triton']} beside triton-ascend",
        expected="triton-ascend alone",
        why="both install the module triton, and the one for CUDA knows no NPU",
        cure=f"{pip} uninstall -y triton && {pip} install --no-deps --force-reinstall triton-ascend==3.2.1",
    )


CHECKS = (
    Check("patch-set", "the files of the set are applied, by their hashes", Group.INSTALLATION, _patch_set),
    Check(
        "package-versions",
        "vLLM and vllm-ascend are the supported releases, and where they lie",
        Group.INSTALLATION,
        _package_versions,
    ),
    Check(
        "package-copies",
        "no second copy of them that another start would pick up",
        Group.INSTALLATION,
        _package_copies,
    ),
    Check("interpreter", "the Python version, and that vllm runs with it", Group.INSTALLATION, _interpreter),
    Check(
        "python-packages",
        "torch, torch_npu, transformers and others against the pins, by metadata",
        Group.INSTALLATION,
        _python_packages,
    ),
)
