# SPDX-License-Identifier: Apache-2.0
"""Requests to an OpenAI-compatible server, by the standard library's plain HTTP.

The ``openai`` client is in the container, but the kit also runs where it is not, and a smoke
test wants to see the bytes that came back, not what a client made of them. A connection is
always direct: ``http.client`` knows no proxy, so one of the environment is never in between.
Every answer is bounded in size and in time, and whatever goes wrong is one sentence.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from patchkit.errors import Refused

_LIMIT = 16 << 20
"""Bytes of one answer. 1024 streamed tokens with all their JSON are half a megabyte."""

_LINE_LIMIT = 1 << 20
_CHUNK = 1 << 16
_SHOWN = 300


class NoReply(Exception):
    """The server gave no answer that can be used; the text is a sentence that says why."""

    def __init__(self, what: str, cure: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.cure = cure


class Rejected(NoReply):
    """The server answered with an HTTP status that is no success. ``body`` is what it said."""

    def __init__(self, status: int, body: bytes, what: str) -> None:
        super().__init__(what)
        self.status = status
        self.body = body


@dataclass(frozen=True)
class Server:
    """Where to ask, with what key, and how many seconds one answer may take from first to last byte."""

    scheme: str
    host: str
    port: int
    prefix: str
    key: str
    timeout: float

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"

    def get(self, path: str) -> bytes:
        """The body of a GET. Raises NoReply."""
        return b"".join(self._exchange("GET", path, None))

    def post(self, path: str, content: dict[str, Any]) -> bytes:
        """The body of a POST of a JSON object. Raises NoReply."""
        return b"".join(self._exchange("POST", path, content))

    def stream(self, path: str, content: dict[str, Any]) -> Iterator[bytes]:
        """The lines of a POST's answer as they come, without their ends. Raises NoReply while it is read."""
        rest = b""
        for piece in self._exchange("POST", path, content):
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > _LINE_LIMIT:
                raise NoReply(f"{self}{path} sent a line of more than {_LINE_LIMIT} bytes")
            yield from (line.rstrip(b"\r") for line in lines)
        if rest:
            yield rest

    def _exchange(self, method: str, path: str, content: dict[str, Any] | None) -> Iterator[bytes]:
        deadline = time.monotonic() + self.timeout
        try:
            with closing(self._connection()) as connection:
                body = None if content is None else json.dumps(content).encode()
                connection.request(method, self.prefix + path, body, self._headers())
                answer = connection.getresponse()
                pieces = self._pieces(answer, connection, path, deadline)
                if not 200 <= answer.status < 300:
                    raise self._rejected(answer.status, b"".join(pieces), path)
                yield from pieces
        except NoReply:
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._failure(error, path) from error

    def _pieces(
        self,
        answer: http.client.HTTPResponse,
        connection: http.client.HTTPConnection,
        path: str,
        deadline: float,
    ) -> Iterator[bytes]:
        size = 0
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            if connection.sock is not None:  # None once the server has said that it will close
                connection.sock.settimeout(left)
            piece = answer.read1(_CHUNK)
            if not piece:
                break
            size += len(piece)
            if size > _LIMIT:
                raise NoReply(f"{self}{path} sent more than {_LIMIT >> 20} MiB; the rest was not read")
            yield piece
        if answer.length:  # read1 does not raise for it, read would
            raise http.client.IncompleteRead(b"", answer.length)

    def _connection(self) -> http.client.HTTPConnection:
        if self.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self.host, self.port, timeout=self.timeout, context=context)
        return http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Connection": "close"}
        return headers | ({"Authorization": f"Bearer {self.key}"} if self.key else {})

    def _rejected(self, status: int, body: bytes, path: str) -> Rejected:
        if status == 401:
            return Rejected(status, body, f"{self}{path} wants an API key, or another one (HTTP 401)")
        return Rejected(status, body, f"{self}{path} answered HTTP {status}: {excerpt(body) or 'nothing'}")

    def _failure(self, error: Exception, path: str) -> NoReply:
        """Each way in which an exchange can break, as a sentence."""
        where = f"{self}{path}"
        match error:
            case ConnectionRefusedError():
                return NoReply(
                    f"nothing listens at {self}: the server is still loading, has died, or is elsewhere",
                    "look at the server's log, or give --url",
                )
            case TimeoutError():
                return NoReply(f"{where} took longer than {self.timeout:g} s", "--timeout S waits longer")
            case socket.gaierror():
                return NoReply(f"the name {self.host} of {self} is not known ({error.strerror})")
            case ssl.SSLCertVerificationError():
                return NoReply(f"the certificate of {self} is not trusted ({error.verify_message})")
            case ssl.SSLError():
                return NoReply(f"{self} does not speak TLS ({error.reason})", "--url http://... in its place")
            case ConnectionResetError() | BrokenPipeError() | http.client.RemoteDisconnected():
                return NoReply(f"{where}: the server closed the connection without an answer")
            case http.client.IncompleteRead():
                return NoReply(f"{where}: the answer breaks off before its end")
            case http.client.HTTPException():
                what = f"{where} does not answer in HTTP ({type(error).__name__})"
                return NoReply(what, "is it https, or another service on this port?")
            case OSError(strerror=reason) if reason:
                return NoReply(f"{where} cannot be reached ({reason})")
            case _:
                return NoReply(f"{where}: {excerpt(str(error).encode('utf-8', 'replace'))}")


def server(url: str, key: str = "", timeout: float = 120.0) -> Server:
    """The server at a URL, with or without a ``/v1`` at its end.

    Raises:
        Refused: it is no http or https URL, the key cannot stand in a header, or no time is left.
    """
    again = "--url http://127.0.0.1:8000"
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise Refused(f"{url!r} is no URL ({error})", again) from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or not _is_plain(parts):
        raise Refused(f"{url!r} is no http or https URL", again)
    if not (key.isascii() and key.isprintable()):
        raise Refused("the API key holds characters that cannot stand in a header", "give it again")
    if not timeout > 0:
        raise Refused(f"a time-out of {timeout:g} s leaves no time for an answer", "--timeout 120")
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    return Server(parts.scheme, parts.hostname, port, prefix, key, timeout)


def _is_plain(parts: SplitResult) -> bool:
    """Without a user, a query, or what would end a request line early."""
    text = parts.netloc + parts.path
    return "@" not in text and not parts.query and text.isascii() and text.isprintable() and " " not in text


def excerpt(body: bytes) -> str:
    """The start of an answer on one line, without control characters."""
    text = body[: 4 * _SHOWN].decode("utf-8", "replace")
    text = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(text.split())[:_SHOWN]
