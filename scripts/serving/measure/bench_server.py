# SPDX-License-Identifier: Apache-2.0
"""What a running server says of itself: the name it serves, its longest context, its version."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from patchkit.errors import Refused
from serving.bounded import Unreadable, json_object
from serving.machine import sockets
from serving.machine.host import Host

KEY_VARIABLES = ("API_KEY", "VLLM_API_KEY", "OPENAI_API_KEY")

_LIMIT = 1 << 20
_TIMEOUT_S = 10.0
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})  # noqa: S104 - compared, not bound to
_SECRET = re.compile(r"(--api[-_]key[= ])\S+(?: (?!-)\S+)*")
_START = "start it, wait until it is ready, then: {again}"
_UNAUTHORISED = (401, 403)


@dataclass(frozen=True)
class Server:
    """``root`` is the model folder as the server was given it, on the server's own machine."""

    url: str
    name: str
    root: str
    max_model_len: int
    version: str

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def is_local(self) -> bool:
        return self.host in _LOCAL


def key_of(environment: Mapping[str, str]) -> str:
    """The API key, "" for none. Never an option: a command line is there for all to read."""
    return next((environment[name] for name in KEY_VARIABLES if environment.get(name)), "")


def normalise(url: str) -> str:
    """The address without a path: "localhost:8000/v1/" to "http://localhost:8000".

    Raises:
        Refused: it is no http or https address.
    """
    given = url if "//" in url else f"http://{url}"
    try:
        parts = urlsplit(given)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise Refused(f"{url!r} is not the address of a server", "give one like http://127.0.0.1:8000")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


def look(url: str, key: str, name: str | None = None) -> Server:
    """Ask the server. ``name`` chooses one of several served names; the first is the default.

    Raises:
        Refused: it is away, wants another key, is no such server, or does not serve that name.
    """
    address = normalise(url)
    models = _models(address, key)
    model = models[0] if name is None else next((m for m in models if m["id"] == name), None)
    if model is None:
        served = ", ".join(str(m["id"]) for m in models)
        raise Refused(
            f"{address} does not serve {name!r}, but {served}", "give --served-model-name one of these"
        )
    longest = model.get("max_model_len")
    if not isinstance(longest, int) or longest < 1:
        what = f"{address} does not tell the longest context that it serves (max_model_len is {longest!r})"
        raise Refused(what, "give the address of vllm serve itself, without a gateway in front of it")
    return Server(address, str(model["id"]), str(model.get("root") or ""), longest, _version(address, key))


def _models(address: str, key: str) -> list[dict[str, Any]]:
    place = f"{address}/v1/models"
    try:
        found = json_object(_get(place, key)).get("data")
    except urllib.error.HTTPError as error:
        if error.code in _UNAUTHORISED:
            what = f"{address} wants {'another' if key else 'an'} API key (HTTP {error.code})"
            raise Refused(what, "put it into the environment: API_KEY=… {again}") from None
        raise Refused(f"{place} answers HTTP {error.code}", "is this the address of vllm serve?") from None
    except Unreadable as error:
        raise Refused(f"the answer of {place} {error}", "is this the address of vllm serve?") from None
    except (OSError, ValueError) as error:
        raise Refused(f"no server answers at {address} ({_reason(error)})", _START) from None
    models = found if isinstance(found, list) else []
    usable = [model for model in models if isinstance(model, dict) and "id" in model]
    if not usable:
        raise Refused(f"{place} names no model", "is this the address of vllm serve?")
    return usable


def _version(address: str, key: str) -> str:
    """What vLLM calls itself, "" where it does not say."""
    try:
        return str(json_object(_get(f"{address}/version", key)).get("version", ""))
    except (OSError, ValueError, Unreadable):
        return ""


def is_up(server: Server, key: str) -> bool:
    try:
        _get(f"{server.url}/v1/models", key)
    except (OSError, ValueError):
        return False
    return True


def _get(place: str, key: str) -> bytes:
    """Past any proxy of the environment, which would not find 127.0.0.1, or be measured too."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(place, headers=headers)  # noqa: S310 - http or https, see `normalise`
    with opener.open(request, timeout=_TIMEOUT_S) as answer:
        text: bytes = answer.read(_LIMIT)
    return text


def _reason(error: Exception) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(cause) or type(cause).__name__


def command_line(host: Host, server: Server) -> str:
    """How a server on this machine was started, without its key; "" where that cannot be seen."""
    port = urlsplit(server.url).port
    if not server.is_local or port is None:
        return ""
    listeners = [socket for socket in sockets.of(host) or () if socket.listens and socket.port == port]
    for socket in listeners:
        pid = re.match(r"pid (\d+)", sockets.owner(host, socket))
        words = (host.text(f"/proc/{pid[1]}/cmdline") or "").split("\0") if pid else []
        if "serve" in words:
            return without_key(["vllm", *words[words.index("serve") :]])
    return ""


def without_key(words: Sequence[str]) -> str:
    return _SECRET.sub(r"\1…", " ".join(word for word in words if word))
