# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend's real files in this process, from any folder, on a machine without an NPU.

`ascend_from` makes ``import vllm_ascend...`` take its files from the folders named. The
packages are bare there: their ``__init__`` would import every NPU operator. Functions
taken out of such a module keep working afterwards, so the pristine, the patched and
wrong variants of one file can be compared side by side.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from target import npu_stand_in

ACTIVATION = "vllm_ascend.ops.activation"
ATTENTION = "vllm_ascend.attention.attention_v1"
MOE_MLP = "vllm_ascend.ops.fused_moe.moe_mlp"
MOE_ARGS = "vllm_ascend.ops.fused_moe.moe_runtime_args"

_BARE = (
    "vllm_ascend",
    "vllm_ascend.attention",
    "vllm_ascend.distributed",
    "vllm_ascend.ops",
    "vllm_ascend.ops.fused_moe",
    "vllm_ascend.worker",
)
_QUIET = {"VLLM_PLUGINS": "", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}


@dataclass(frozen=True)
class Edit:
    """``old`` becomes ``new``; it must occur exactly once. Line ends are those of the file."""

    old: str
    new: str


def load(module: str, *roots: Path) -> ModuleType:
    """One module of vllm-ascend, from the first of the folders that has it."""
    with ascend_from(*roots):
        return importlib.import_module(module)


@contextmanager
def ascend_from(*roots: Path) -> Iterator[None]:
    """For a while, vllm_ascend is what the folders have (an earlier one wins) and torch_npu the stand-in."""
    with npu_stood_in(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)
        before = _forget_ascend()
        for name in _BARE:
            package = ModuleType(name)
            package.__path__ = [str(root.joinpath(*name.split("."))) for root in roots]
            sys.modules[name] = package
        try:
            yield
        finally:
            _forget_ascend()
            sys.modules.update(before)


@contextmanager
def npu_stood_in() -> Iterator[None]:
    """For a while, torch_npu is the stand-in: enough to run what `load` has imported already."""
    torch = _import_vllm()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch_npu", npu_stand_in)
        patch.setattr(torch, "npu", npu_stand_in.npu, raising=False)
        yield


def write_variant(folder: Path, module: str, root: Path, *edits: Edit) -> Path:
    """A folder with the file of one module, changed: the first argument of `load`, before ``root``."""
    path = Path(*module.split(".")).with_suffix(".py")
    source = (root / path).read_bytes()
    line_end = b"\r\n" if b"\r\n" in source else b"\n"
    for edit in edits:
        old, new = (text.encode().replace(b"\n", line_end) for text in (edit.old, edit.new))
        if source.count(old) != 1:
            raise ValueError(f"{path}: {edit.old!r} occurs {source.count(old)} times")
        source = source.replace(old, new)
    target = folder / path
    target.parent.mkdir(parents=True)
    target.write_bytes(source)
    return folder


def _import_vllm() -> ModuleType:
    """vLLM comes before the stand-in: it and transformers look for ``torch_npu`` when first imported."""
    with pytest.MonkeyPatch.context() as environment:
        for name, value in _QUIET.items():
            environment.setenv(name, value)
        importlib.import_module("vllm.model_executor.layers.activation")
        importlib.import_module("vllm.model_executor.layers.fused_moe.activation")
        return importlib.import_module("torch")


def _forget_ascend() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name.partition(".")[0] == "vllm_ascend"]
    return {name: sys.modules.pop(name) for name in names}
