# SPDX-License-Identifier: Apache-2.0
"""A server on a loopback port that chats as vLLM does, or wrongly in one way of the test's choice."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NAME = "step3p7-flash"
GOOD_MESSAGE = {"role": "assistant", "content": "北京有三千多年的历史。", "reasoning": "用户要三句话。"}
GOOD_CALL = {
    "id": "call-1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "北京"}'},
}


def reply(
    message: dict[str, Any] | None = None, finish: str = "stop", prompt: int = 60, answer: int = 12
) -> bytes:
    """The body of a chat completion."""
    usage = {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}
    choice = {"index": 0, "message": message or GOOD_MESSAGE, "finish_reason": finish}
    return json.dumps({"object": "chat.completion", "choices": [choice], "usage": usage}).encode()


def stream(*pieces: str, ends: bool = True) -> bytes:
    """A chat completion as server-sent events."""
    events: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]} for piece in pieces
    ]
    if ends:
        events += [
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": len(pieces)}},
        ]
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    return (text + ("data: [DONE]\n\n" if ends else "")).encode()


Chat = Callable[[dict[str, Any]], tuple[int, bytes]]
"""From the request to HTTP status and body."""


def pictures_in(request: dict[str, Any]) -> int:
    contents = [message["content"] for message in request["messages"]]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return sum(part["type"] == "image_url" for part in parts)


def good_chat(request: dict[str, Any]) -> tuple[int, bytes]:
    """What a healthy server with all parsers says."""
    if request.get("stream"):
        return 200, stream("一", "二", "三")
    if request.get("tools"):
        return 200, reply({"role": "assistant", "content": None, "tool_calls": [GOOD_CALL]}, "tool_calls")
    return 200, reply(prompt=60 + 600 * pictures_in(request))


@dataclass
class Fake:
    """What the server is like. ``raw``, if given, goes to the socket as the answer to every chat."""

    chat: Chat = good_chat
    names: tuple[str, ...] = (NAME,)
    health: int = 200
    key: str = ""
    tokenizes: bool = True
    detokenized: str | None = None
    raw: bytes | None = None
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: Fake

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/health":
            self._answer(self.fake.health, b"")
        elif self._is_allowed() and self.path == "/v1/models":
            models = [{"id": name, "object": "model", "root": "/nonexistent"} for name in self.fake.names]
            self._answer(200, json.dumps({"data": models}).encode())

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._is_allowed():
            return
        if self.path == "/tokenize" and self.fake.tokenizes:
            self.fake.detokenized = self.fake.detokenized or request["prompt"]
            self._answer(200, json.dumps({"tokens": list(range(40))}).encode())
        elif self.path == "/detokenize" and self.fake.tokenizes:
            self._answer(200, json.dumps({"prompt": self.fake.detokenized}).encode())
        elif self.path == "/v1/chat/completions":
            self._chat(request)
        else:
            self._answer(404, b'{"detail": "Not Found"}')

    def _chat(self, request: dict[str, Any]) -> None:
        self.fake.requests.append(request)
        if self.fake.raw is None:
            self._answer(*self.fake.chat(request))
        else:
            self.wfile.write(self.fake.raw)
            self.close_connection = True

    def _is_allowed(self) -> bool:
        allowed = not self.fake.key or self.headers["Authorization"] == f"Bearer {self.fake.key}"
        if not allowed:
            self._answer(401, b'{"error": "Unauthorized"}')
        return allowed

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving(fake: Fake) -> Iterator[Fake]:
    """The fake on a port of its own, until the end of the block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"fake": fake}))
    server.daemon_threads = True
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02), daemon=True)
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
