# SPDX-License-Identifier: Apache-2.0
"""A ``vllm`` package whose ``serve`` is the fake chat server, in a process of its own, with a worker.

``plan.json`` beside the package says how it goes, and ``starts.jsonl`` what it was started with.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import tree
from unit.serving import fake_chat
from unit.serving.fake_chat import Fake

MAIN = "vllm/entrypoints/cli/main.py"
WORKER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
"""As a worker in the driver does: it pays no heed to the polite signal."""

OUT_OF_MEMORY = "torch.OutOfMemoryError: NPU out of memory. Tried to allocate 2.00 GiB"


@dataclass(frozen=True)
class FakeVllm:
    """A folder that holds ``vllm/`` and ``vllm_ascend/``, the small set applied."""

    root: Path

    def write(self) -> FakeVllm:
        tree.write_packages(self.root, tree.ORDER)
        for folder in ("vllm", "vllm/entrypoints", "vllm/entrypoints/cli"):
            (self.root / folder).mkdir(exist_ok=True)
            (self.root / folder / "__init__.py").write_text("")
        (self.root / MAIN).write_text(
            f"import sys\nsys.path.insert(0, {str(tree.PROJECT / 'tests')!r})\n"
            f"sys.path.insert(0, {str(tree.PROJECT / 'scripts')!r})\n"
            f"from unit.serving import fake_vllm\nfake_vllm.main({str(self.root)!r})\n"
        )
        return self.plan()

    def plan(self, **how: Any) -> FakeVllm:
        """Such as ``dies="text"``, ``never=True``, ``hangs=True``, ``says="garbage"``."""
        (self.root / "plan.json").write_text(json.dumps(how))
        return self

    @property
    def starts(self) -> list[dict[str, Any]]:
        log = self.root / "starts.jsonl"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def living(self) -> list[int]:
        """The processes of all servers that were started, and of their workers, that still run."""
        return [pid for start in self.starts for pid in start["pids"] if is_alive(pid)]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def main(root: str) -> None:
    """In the place of vLLM's own entry point."""
    plan = json.loads(Path(root, "plan.json").read_text())
    words = sys.argv[1:]
    worker = subprocess.Popen([sys.executable, "-c", WORKER])
    with Path(root, "starts.jsonl").open("a") as log:
        start = {"words": words, "pids": [os.getpid(), worker.pid], "environment": dict(os.environ)}
        log.write(json.dumps(start) + "\n")
    if "dies" in plan:
        print(plan["dies"], flush=True)
        os._exit(3)
    if plan.get("never"):
        time.sleep(600)
    serve(plan, int(words[words.index("--port") + 1]))


def serve(plan: dict[str, Any], port: int) -> None:
    def chat(request: dict[str, Any]) -> tuple[int, bytes]:
        if plan.get("dies_when_asked"):
            print(OUT_OF_MEMORY, flush=True)
            os._exit(3)
        if plan.get("hangs"):
            time.sleep(600)
        if "says" in plan:
            return 200, str(plan["says"]).encode()
        return fake_chat.good_chat(request)

    if plan.get("stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    handler = type("Handler", (fake_chat._Handler,), {"fake": Fake(chat)})
    ThreadingHTTPServer(("127.0.0.1", port), handler).serve_forever()
