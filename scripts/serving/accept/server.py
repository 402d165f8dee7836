# SPDX-License-Identifier: Apache-2.0
"""``vllm serve`` of the run's own: on loopback, with its log, and gone at the end whatever happens.

Three things see to the end: the block that started it; the guardian, where the kit was killed; and,
where both were (a reboot of the container, an out-of-memory), the next run, which finds the record.
"""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import secrets
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from patchkit.errors import BundleDamaged, KitError, Refused
from serving import bounded
from serving.client import exchange
from serving.client.exchange import NoReply
from serving.faults import explaining
from serving.faults.fault import Severity

from . import guardian

if TYPE_CHECKING:
    from .phase import Step

HOST = "127.0.0.1"
RECORD = "server.json"
"""In the run's folder while a server runs."""

MARK = "STEP3P7_KIT_SERVER"
"""A variable of the server's environment, with a value that no other process has."""

GRACE_S = 60.0
_POLL_S = 0.5
_NOTICE_S = 2.0
"""From the end of a server until its guardian has ended the rest, and says so."""

_SAY_EVERY_S = 60.0
_HEALTH_TIMEOUT_S = 5.0
_RECORD_LIMIT = 4096
_KEYS = ("VLLM_API_KEY", "API_KEY")
"""A server on loopback for some minutes has none, or our own questions would be turned away."""

_SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": HOST,
}
"""The folder has everything: nothing asks a network."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Start:
    """What to start. ``vllm`` are the words of the program, ``arguments`` those behind the model."""

    vllm: tuple[str, ...]
    model: Path
    arguments: tuple[str, ...]
    log: Path
    record: Path
    packages: Path | None = None
    """In front of the interpreter's own, by PYTHONPATH."""
    settings: Mapping[str, str] = field(default_factory=dict)
    limit_s: float = 3600.0

    @property
    def shown(self) -> str:
        """As it can be typed again: without the port, which is another one each time."""
        added = " ".join(f"{name}={shlex.quote(value)}" for name, value in self.settings.items())
        return f"{added} {shlex.join(['vllm', 'serve', str(self.model), *self.arguments])}".lstrip()

    def command(self, port: int) -> list[str]:
        own = ("--host", HOST, "--port", str(port))
        return [*self.vllm, "serve", str(self.model), *self.arguments, *own]

    def environment(self, mark: str) -> dict[str, str]:
        found = {name: value for name, value in os.environ.items() if name not in _KEYS}
        places = [str(self.packages)] if self.packages else []
        places += [found["PYTHONPATH"]] if found.get("PYTHONPATH") else []
        path = {"PYTHONPATH": os.pathsep.join(places)} if places else {}
        return found | _SETTINGS | path | dict(self.settings) | {MARK: mark}


class ServerFailed(Exception):
    """A server that ended, was not healthy in time, or does not answer. The text is one sentence."""

    def __init__(self, what: str, start: Start) -> None:
        super().__init__(what)
        self.what = what
        self.start = start

    def step(self, name: str) -> Step:
        """It as the outcome of what it was started for."""
        from .phase import Step, Verdict

        return Step(name, Verdict.FAILED, self.what, commands=(self.start.shown,))


class NotGone(KitError):
    """A process that the kernel holds: nothing more can be started beside it."""

    outcome = "what was measured stays"


@dataclass(frozen=True)
class Server:
    """One that answered 200 to ``/health``, after ``start_s`` seconds. ``session`` is its process id."""

    start: Start
    port: int
    session: int
    start_s: float
    _process: subprocess.Popen[bytes] = field(repr=False)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def log(self) -> Path:
        return self.start.log

    @property
    def command(self) -> str:
        """As it can be typed again."""
        return self.start.shown

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def failed(self, error: NoReply) -> ServerFailed:
        """What a question without an answer means: it has ended since, or it hangs, or it answers wrongly."""
        if (code := _ended(self._process)) is not None:
            return _died(self.start, code, "while it was asked")
        return ServerFailed(f"the server runs, and gave no usable answer: {error.what}", self.start)


@contextlib.contextmanager
def serving(start: Start, say: Say) -> Iterator[Server]:
    """Start it, wait until it is healthy, and end it with all that it started.

    Raises:
        ServerFailed: it ended, or was not healthy in time.
        NotGone: not all of it could be ended.
    """
    port, mark = _free_port(), secrets.token_hex(16)
    with start.log.open("ab") as log:
        log.write(f"$ {start.shown}\n".encode())
        log.flush()
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _program(), str(GRACE_S), *start.command(port)],
            cwd=start.log.parent,
            env=start.environment(mark),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # Ctrl-C reaches the kit alone
        )
    session = 0
    try:
        assert process.stdout is not None  # noqa: S101 - stdout=PIPE gives one
        session = int(process.stdout.readline() or 0)
        if session:
            _write_record(start.record, session, mark)
        say(f"started, and not healthy yet: {start.shown}")
        seconds = _wait(start, process, port, say)
        say(f"healthy after {seconds:.0f} s")
        yield Server(start, port, session, seconds, process)
    finally:
        _end(process, session)
        start.record.unlink(missing_ok=True)


def _program() -> str:
    source = pkgutil.get_data(__package__, "guardian.py")
    if source is None:
        raise BundleDamaged(
            "the kit's own file serving/accept/guardian.py is absent",
            "copy the kit again from where you have it",
        )
    return source.decode("utf-8")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


def _wait(start: Start, process: subprocess.Popen[bytes], port: int, say: Say) -> float:
    """The seconds until it was healthy.

    Raises:
        ServerFailed: it ended before, or the time is up.
    """
    began = time.monotonic()
    address = exchange.server(f"http://{HOST}:{port}", timeout=_HEALTH_TIMEOUT_S)
    told = began
    while True:
        seconds = time.monotonic() - began
        if (code := process.poll()) is not None:
            raise _died(start, code, f"after {seconds:.0f} s, before it was healthy")
        with contextlib.suppress(NoReply):
            address.get("/health")
            return time.monotonic() - began
        if seconds > start.limit_s:
            what = f"vllm serve was not healthy after {start.limit_s:.0f} s (--start-limit), and was ended"
            raise ServerFailed(f"{what}; {_explained(start.log)}", start)
        if time.monotonic() - told > _SAY_EVERY_S:
            told = time.monotonic()
            say(f"not healthy yet, {seconds / 60:.0f} min")
        time.sleep(_POLL_S)


def _died(start: Start, code: int, when: str) -> ServerFailed:
    return ServerFailed(f"vllm serve ended with exit code {code} {when}; {_explained(start.log)}", start)


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    """Its exit code where it has ended, or is about to: the question may have broken a moment before."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(_NOTICE_S)
    return None


def _explained(log: Path) -> str:
    """What ``kit explain`` says of its log: the cause's name and what helps, or that it is not known."""
    try:
        first = explaining.explain_log(log)[0]
    except Refused as error:
        return f"its log {log.name}: {error.what}"
    fault = first.fault
    if fault.severity is Severity.UNKNOWN:
        seen = f" ({first.seen.text})" if first.seen.text else ""
        return f"the kit knows nothing in {log.name} that explains it{seen}"
    return f"{log.name} shows {fault.name}: {fault.cause}"


def _end(process: subprocess.Popen[bytes], session: int) -> None:
    """Ask the guardian to end it; where that takes too long or the guardian is gone, do it here.

    Raises:
        NotGone: a process is left that nothing ends.
    """
    for stream in (process.stdin, process.stdout):
        assert stream is not None  # noqa: S101 - both are pipes
        stream.close()
    try:
        process.wait(2 * GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if session:
        _require_gone(guardian.end(session, 0.0) if guardian.members(session) else [])


def _require_gone(left: list[int]) -> None:
    if left:
        names = ", ".join(map(str, left))
        what = f"the server's process {names} cannot be ended: the driver holds it"
        raise NotGone(what, "restart the container, or the machine; then: {again}")


# --- what an earlier run left --------------------------------------------------------------


def _write_record(record: Path, session: int, mark: str) -> None:
    values = {"session": session, "mark": mark, "boot": _boot(), "started": _started(session)}
    record.write_text(json.dumps(values) + "\n", "utf-8")


def sweep(record: Path) -> bool:
    """End what a run left that was killed together with its guardian.

    A process is ours where it was started when the record says, or where its environment has the
    record's mark; process ids come again, and another's process is never touched.

    Returns:
        Whether there was anything to end.

    Raises:
        NotGone: a process is left that nothing ends.
    """
    try:
        found = bounded.read_json_object(record, _RECORD_LIMIT)
        session, mark = int(found["session"]), str(found["mark"])
    except bounded.NotThere:
        return False
    except (bounded.Unreadable, KeyError, TypeError, ValueError):
        session, mark, found = 0, "", {}
    ours = session > 1 and found.get("boot") == _boot() and _is_ours(session, mark, found.get("started"))
    if ours:
        _require_gone(guardian.end(session, GRACE_S))
    record.unlink(missing_ok=True)
    return ours


def _is_ours(session: int, mark: str, started: object) -> bool:
    """While a process of a session lives, the kernel gives its number to no other."""
    alive = guardian.members(session)
    if session in alive:
        return _started(session) == started
    return any(_has_mark(pid, mark) for pid in alive)


def _has_mark(pid: int, mark: str) -> bool:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{MARK}={mark}".encode() in variables


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
    except OSError:
        return ""


def _started(pid: int) -> int:
    """In clock ticks since the boot (field 22 of ``/proc/PID/stat``), 0 where there is no such process."""
    try:
        _, _, rest = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")
    except OSError:
        return 0
    return int(rest.split()[19])
