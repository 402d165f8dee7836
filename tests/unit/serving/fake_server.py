# SPDX-License-Identifier: Apache-2.0
"""A server that tells of itself what vllm serve tells, and a vllm command that pretends to measure it."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

VLLM = """\
#!{python}
# Stands for the vllm command: `bench serve` writes what the real one writes, as {folder}/plan.json says.
import json, os, sys, time

words = sys.argv[1:]
assert words[:2] == ["bench", "serve"], words
options = {{}}
for word, value in zip(words, words[1:] + ["--"]):
    if word.startswith("--"):
        options[word] = None if value.startswith("--") else value
with open("{folder}/calls.jsonl", "a") as log:
    seen = {{name: os.environ.get(name) for name in ("OPENAI_API_KEY", "no_proxy")}}
    log.write(json.dumps({{"options": options, "environment": seen, "pid": os.getpid()}}) + "\\n")
plan = json.load(open("{folder}/plan.json")).get(options["--random-input-len"], {{}})
print("Namespace(...)")
print("  50%|#####     | 3/6 [00:01<00:01]", file=sys.stderr)
time.sleep(plan.get("sleep", 0))
if plan.get("exit"):
    print("ValueError: " + plan["says"], file=sys.stderr)
    sys.exit(plan["exit"])
if "--save-result" in options:
    names = ("--num-prompts", "--random-input-len", "--random-output-len")
    n, inputs, outputs = (int(options[name]) for name in names)
    result = {{
        "num_prompts": n, "completed": n, "failed": 0, "max_concurrency": int(options["--max-concurrency"]),
        "total_input_tokens": n * inputs, "total_output_tokens": n * outputs, "output_throughput": 80.0,
        "mean_ttft_ms": 100.0, "mean_tpot_ms": 20.0,
    }} | plan.get("result", {{}})
    text = json.dumps(result)
    with open(os.path.join(options["--result-dir"], options["--result-filename"]), "w") as file:
        file.write(text[: plan.get("cut", len(text))])
"""


@dataclass
class Server:
    """What it answers; may be changed while it runs."""

    url: str = ""
    models: Any = field(default_factory=list)
    key: str = ""
    status: int = 200
    asked: list[str] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    server_state: Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        state = self.server_state
        state.asked.append(self.path)
        if self.path == "/version":
            self._json(200, {"version": "0.20.2"})
        elif state.key and self.headers.get("Authorization") != f"Bearer {state.key}":
            self._json(401, {"error": "Unauthorized"})
        elif self.path == "/v1/models":
            self._json(state.status, {"object": "list", "data": state.models})
        else:
            self._json(404, {})

    def _json(self, status: int, value: Any) -> None:
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@contextlib.contextmanager
def running(model: Path, max_model_len: int = 4096) -> Iterator[Server]:
    """A server on loopback that serves ``model`` as "step3p7"."""
    state = Server(models=[{"id": "step3p7", "root": str(model), "max_model_len": max_model_len}])
    handler = type("Handler", (_Handler,), {"server_state": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()


@dataclass(frozen=True)
class Vllm:
    """The command in a folder of its own. A plan says for an input length how its row goes."""

    folder: Path

    def write(self) -> Vllm:
        self.folder.mkdir()
        command = self.folder / "vllm"
        command.write_text(VLLM.format(python=sys.executable, folder=self.folder))
        command.chmod(0o755)
        return self.plan({})

    def plan(self, rows: dict[int, dict[str, Any]]) -> Vllm:
        (self.folder / "plan.json").write_text(json.dumps({str(key): value for key, value in rows.items()}))
        return self

    @property
    def calls(self) -> list[dict[str, Any]]:
        log = self.folder / "calls.jsonl"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    @property
    def measured(self) -> list[str]:
        """The input lengths of the rows that were run, warm-ups left out."""
        return [
            call["options"]["--random-input-len"] for call in self.calls if "--save-result" in call["options"]
        ]
