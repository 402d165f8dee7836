# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the Hugging Face hub on loopback: one repository, byte ranges, and a cable to pull."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

REPO = "some/model"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
_CHUNK = 1 << 16


@dataclass
class Hub:
    """``budget`` is how many bytes of files it sends before a connection breaks; None for no end."""

    folder: Path
    url: str = ""
    budget: int | None = None
    comes_back: bool = False
    """After one broken connection, or never."""
    sent: int = 0
    ranges: list[str] = field(default_factory=list)
    status: int = 200
    claimed_bytes: int = 0

    def files(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*") if path.is_file())


def _etag(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub, path = self.hub, self.path.partition("?")[0]
        if hub.status != 200:
            self._json({"error": "down"}, hub.status)
        elif hub.budget is not None and hub.sent >= hub.budget:
            self._pull()
        elif match := re.fullmatch(rf"/api/models/{REPO}(?:/revision/(\w+))?", path):
            self._info(match[1] or "main")
        elif path == f"/api/models/{REPO}/tree/{COMMIT}":
            self._json([self._entry(file) for file in hub.files()])
        elif match := re.fullmatch(rf"/{REPO}/resolve/{COMMIT}/(.+)", path):
            self._file(hub.folder / match[1])
        else:
            self._json({"error": "Repository not found"}, 404, "RepoNotFound")

    def _info(self, revision: str) -> None:
        if revision not in {"main", COMMIT}:
            self._json({"error": "Invalid rev id"}, 404, "RevisionNotFound")
            return
        siblings = [
            {"rfilename": str(file.relative_to(self.hub.folder)), "size": file.stat().st_size}
            for file in self.hub.files()
        ]
        if self.hub.claimed_bytes:
            siblings[0]["size"] = self.hub.claimed_bytes
        self._json({"id": REPO, "sha": COMMIT, "siblings": siblings})

    def _entry(self, file: Path) -> dict[str, Any]:
        name = str(file.relative_to(self.hub.folder))
        return {"type": "file", "path": name, "size": file.stat().st_size, "oid": _etag(file)}

    def _file(self, file: Path) -> None:
        size = file.stat().st_size
        wanted = self.headers.get("Range")
        start = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
        if wanted:
            self.hub.ranges.append(wanted)
        self.send_response(206 if wanted else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{_etag(file)}"')
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(size - start))
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        self.end_headers()
        if self.command == "GET":
            self._send(file, start)

    def _send(self, file: Path, start: int) -> None:
        with file.open("rb") as source:
            source.seek(start)
            while chunk := source.read(_CHUNK):
                if self.hub.budget is not None and self.hub.sent >= self.hub.budget:
                    self._pull()
                    return
                self.wfile.write(chunk)
                self.hub.sent += len(chunk)

    def _pull(self) -> None:
        """End the connection in the middle of whatever it carries."""
        if self.hub.comes_back:
            self.hub.budget = None
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _json(self, value: Any, status: int = 200, code: str = "") -> None:
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        if code:
            self.send_header("X-Error-Code", code)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(text)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Hub]:
    """Serve a folder as the one repository."""
    hub = Hub(folder)
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
