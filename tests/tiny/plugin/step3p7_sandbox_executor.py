# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend's own executor for several processes and nodes, on a CPU. Never part of the kit.

On an NPU vllm-ascend replaces vLLM's `MultiprocExecutor` by one of its own, from a file that needs
no ``torch_npu``, in a package that does. So that file is run here, as it lies in the package, in
this module's name: the class travels to other processes, which look it up by that.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from vllm.logger import init_logger
from vllm.v1.executor import multiproc_executor

_FILE = Path("patch", "platform", "patch_multiproc_executor.py")


def register() -> None:
    """May be called more than once; what is below was done when this module was imported."""


def _path() -> Path:
    found = importlib.util.find_spec("vllm_ascend")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("there is no vllm_ascend here, whose executor this is about")
    return Path(found.origin).parent / _FILE


exec(compile(_path().read_bytes(), _path(), "exec"))

Published: Any = multiproc_executor.MultiprocExecutor
"""What the file has just put there."""


class SandboxExecutor(Published):  # type: ignore[misc]  # of a file that is read at run time
    """Says in the log whose executor is in use."""

    def _init_executor(self) -> None:
        init_logger("vllm.sandbox").info("executor: %s", Published.__name__)
        super()._init_executor()


multiproc_executor.MultiprocExecutor = SandboxExecutor
