# SPDX-License-Identifier: Apache-2.0
"""The environment and the command line with which the sandbox's vLLM runs the tiny model on a CPU.

``python -m tiny.launch OUT`` prints both, for a shell, for a model folder ``OUT``.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
PLUGINS = ("step3p7_sandbox_moe", "step3p7_sandbox_mtp")
"""The second does nothing where the set mtp is not applied."""

PLUGIN_FOLDER = TESTS / "tiny" / "plugin"

# Of the caller's environment only what names no package and configures none.
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "LD_LIBRARY_PATH")

COMPILER_OFF = "TORCHDYNAMO_DISABLE"
"""Else vLLM compiles operators for most of a minute, eager or not. Not for a server that is to compile."""

SETTINGS = {
    COMPILER_OFF: "1",
    "CUDA_VISIBLE_DEVICES": "",  # the sandbox's torch is a CUDA build
    "GLOO_SOCKET_IFNAME": "lo",  # two ranks would look for a network
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
}

SERVED_NAME = "step3p7"
OPTIONS = (
    "--trust-remote-code",
    "--enforce-eager",
    "--dtype=float32",
    "--max-model-len=4096",
    "--max-num-seqs=16",
    "--reasoning-parser=step3p5",
    "--tool-call-parser=step3p5",
    "--enable-auto-tool-choice",
    f"--served-model-name={SERVED_NAME}",
    "--host=127.0.0.1",
)


def environment(scratch: Path, packages: Path | None = None, plugin: bool = True) -> dict[str, str]:
    """For a process that runs vLLM; caches go to ``scratch``.

    With ``packages``, a folder that holds ``vllm/``, that copy is the one imported, in front of
    the interpreter's own. Without ``plugin`` no plugin of vLLM's is loaded.
    """
    places = [*([packages] if packages else []), *([PLUGIN_FOLDER] if plugin else [])]
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    chosen = {
        "HF_HOME": str(scratch / "hf"),
        "PYTHONPATH": os.pathsep.join(map(str, places)),
        "VLLM_CACHE_ROOT": str(scratch / "vllm"),
        "VLLM_PLUGINS": ",".join(PLUGINS) if plugin else "",
    }
    return kept | SETTINGS | chosen


def serve_command(python: Path, model: Path, port: int, *more: str) -> list[str]:
    """``vllm serve`` by the interpreter's name, so that ``environment(packages=...)`` decides what runs.

    ``more`` comes last: of an option given twice vLLM takes the second.
    """
    entry = [str(python), "-P", "-m", "vllm.entrypoints.cli.main", "serve", str(model)]
    return [*entry, *OPTIONS, f"--port={port}", *more]


def main(arguments: list[str]) -> int:
    [model] = arguments
    scratch = Path(model).resolve().parent / "cache"
    added = {name: value for name, value in environment(scratch).items() if name not in KEPT}
    print(" \\\n".join(f"{name}={shlex.quote(value)}" for name, value in added.items()) + " \\")
    print(shlex.join(serve_command(Path(sys.executable), Path(model).resolve(), 8000)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
