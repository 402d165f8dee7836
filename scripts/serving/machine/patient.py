# SPDX-License-Identifier: Apache-2.0
"""What the doctor looks at. Whatever several checks need is found out once."""

from __future__ import annotations

import json
import os
import pkgutil
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from patchkit.errors import BundleDamaged, KitError
from patchkit.release import Release
from patchkit.target import Target, default_interpreter

from . import npu_smi, processes, reference, sockets
from .host import Host
from .npu_smi import Family, Table
from .sockets import Socket

DISTRIBUTIONS = ("torch", "torch-npu", "torchvision", "transformers", "triton-ascend", "triton")
"""The ones whose versions are asked for; the checks say which are wanted."""

_ASK_TIMEOUT_S = 60.0
_DIST_INFO = re.compile(r"(.+)-([^-]+)\.dist-info")
_DEVICE_TYPE = re.compile(r"""^__device_type__\s*=\s*['"](\w{1,20})['"]""", re.MULTILINE)


@dataclass(frozen=True)
class Packages:
    """What is installed, by metadata alone. ``python`` is None where only a folder was named."""

    where: str
    python: tuple[int, ...] | None
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Patient:
    """The machine, the installation and what is to be served. ``target`` is an error where there is none."""

    host: Host
    release: Release
    target: Target | KitError
    port: int = reference.SERVE_PORT
    model: Path | None = None

    @cached_property
    def interpreter(self) -> Path | None:
        """The Python whose packages count, None for a bare folder."""
        return self.target.python if isinstance(self.target, Target) else default_interpreter()

    @cached_property
    def packages(self) -> Packages | None:
        """The versions of the packages around vLLM, or None where they cannot be told."""
        if self.interpreter is not None:
            return ask(self.interpreter)
        assert isinstance(self.target, Target)  # noqa: S101 - only a target has no interpreter
        return _in_folder(self.target.lock_folder.parent)

    @cached_property
    def device_type(self) -> str:
        """The chip family that the installed vllm-ascend was built for ("A2"), "" if it does not say."""
        if not isinstance(self.target, Target):
            return ""
        try:
            text = (self.target.locations["vllm_ascend"].folder / "_build_info.py").read_text(
                "utf-8", "replace"
            )
        except (OSError, KeyError):
            return ""
        match = _DEVICE_TYPE.search(text)
        return match[1] if match else ""

    @cached_property
    def cards(self) -> Table | None:
        """The table of npu-smi, or None where it printed none with a card in it."""
        if not self.host.npu_smi:
            return None
        table = npu_smi.parse(self.host.npu_smi_info.text)
        return table if table.chips else None

    @cached_property
    def families(self) -> frozenset[Family]:
        return frozenset(chip.family for chip in self.cards.chips) if self.cards else frozenset()

    @cached_property
    def sockets(self) -> tuple[Socket, ...] | None:
        return sockets.of(self.host)


def ask(interpreter: Path, names: Sequence[str] = DISTRIBUTIONS) -> Packages | None:
    """Ask the interpreter's own metadata, with no folder of ours on its path and nothing imported."""
    program = pkgutil.get_data(__package__, "distributions.py")
    if program is None:
        raise BundleDamaged(
            "the kit's own file serving/machine/distributions.py is absent",
            "copy the kit again from where you have it",
        )
    command: tuple[str | Path, ...] = (interpreter, "-P", "-B", "-c", program.decode("utf-8"), *names)
    output = processes.run(command, os.environ, interpreter.resolve().parent, _ASK_TIMEOUT_S)
    try:
        answer = json.loads(output.text.strip().splitlines()[-1])
        versions = {str(name): str(version) for name, version in answer["versions"].items()}
        return Packages(str(interpreter), tuple(int(part) for part in answer["python"]), versions)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError):
        return None


def _in_folder(folder: Path) -> Packages:
    """The versions that the names of the ``*.dist-info`` folders in site-packages give."""
    matches = (_DIST_INFO.fullmatch(path.name) for path in sorted(folder.glob("*.dist-info")))
    versions = {re.sub(r"[-_.]+", "-", match[1]).lower(): match[2] for match in matches if match}
    return Packages(str(folder), None, {name: versions[name] for name in DISTRIBUTIONS if name in versions})
