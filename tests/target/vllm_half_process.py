# SPDX-License-Identifier: Apache-2.0
"""A real vLLM in a process of its own, asked one question at a time.

`Target` starts the sandbox's interpreter with a root of choice at the front of its path
and talks JSON lines with `vllm_half_server`, so that one import serves many tests.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
START_AND_ANSWER_S = 180

# Of the caller's environment only what names no package and configures none.
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "LD_LIBRARY_PATH")
SETTINGS = {
    "CUDA_VISIBLE_DEVICES": "",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "",
    # vLLM's warming up would compile a few operators for most of a minute.
    "TORCHDYNAMO_DISABLE": "1",
}


class Raised(Exception):
    """What the target raised: the name of the class, and the text."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text


class Target:
    """vLLM as it lies in ``root``, with caches and log in ``scratch``."""

    def __init__(self, python: Path, root: Path, scratch: Path) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self._log = scratch / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(python), "-m", "target.vllm_half_server"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=scratch,
                env=environment(root, scratch),
            )

    def ask(self, question: str, **arguments: object) -> Any:
        """The answer of one function of the server; `Raised` if that raised."""
        assert self._process.stdin
        line = json.dumps({"question": question, "arguments": arguments}) + "\n"
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
            answer = json.loads(self._read_line(time.monotonic() + START_AND_ANSWER_S))
        except (OSError, EOFError, TimeoutError) as error:
            self.stop()
            raise RuntimeError(
                f"no answer to {question!r} ({error}); the log ends:\n{self._tail()}"
            ) from error
        if "raised" in answer:
            raise Raised(answer["raised"], answer["text"])
        return answer["value"]

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read_line(self, deadline: float) -> bytes:
        assert self._process.stdout
        pipe = self._process.stdout.fileno()
        read = b""
        while not read.endswith(b"\n"):
            if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"nothing for {START_AND_ANSWER_S} s")
            chunk = os.read(pipe, 1 << 20)
            if not chunk:
                raise EOFError("the process has ended")
            read += chunk
        return read

    def _tail(self) -> str:
        return "\n".join(self._log.read_text("utf-8", "replace").splitlines()[-40:])


def environment(root: Path, scratch: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    places = {
        "PYTHONPATH": os.pathsep.join([str(root), str(TESTS)]),
        "HF_HOME": str(scratch / "hf"),
        "VLLM_CACHE_ROOT": str(scratch / "vllm"),
    }
    return kept | SETTINGS | places
