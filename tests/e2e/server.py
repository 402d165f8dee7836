# SPDX-License-Identifier: Apache-2.0
"""A real ``vllm serve`` on the loopback interface: started, waited for, measured, and always stopped."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tiny.launch import COMPILER_OFF, environment, serve_command

HOST = "127.0.0.1"
START_S = 600  # a minute is enough, but for a machine with other work
STOP_S = 20
LOOK_S = 0.25
LOG_LINES = 40
LOG_WIDTH = 300  # vLLM may name 300 architectures in a line

# vLLM and gloo would else look for the machine's address on a network.
LOOPBACK = {"VLLM_HOST_IP": HOST, "GLOO_SOCKET_IFNAME": "lo"}
TWO_RANKS = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}


class ServerFailed(Exception):
    """It ended, or was not healthy in time. The message says which, and ends with the end of its log."""


@dataclass(frozen=True)
class Way:
    """How a model is served: options of ``vllm serve`` and of the environment, on top of `tiny.launch`."""

    options: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    compiles: bool = False

    def __str__(self) -> str:
        return " ".join(self.options) or "no options"


@dataclass(frozen=True)
class Setup:
    """A model folder, and the vLLM that serves it: a root's, or without one the interpreter's own."""

    python: Path
    model: Path
    packages: Path | None = None
    way: Way = field(default_factory=Way)


@dataclass(frozen=True)
class Server:
    """One that answered 200 to ``/health``, after ``start_s`` seconds."""

    port: int
    log: Path
    start_s: float
    process: subprocess.Popen[bytes]
    host: str = HOST

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def is_healthy(self) -> bool:
        return self.process.poll() is None and get_health(self.port, self.host)

    def memory(self) -> int:
        """Bytes that its processes hold, a page that several share counted once."""
        return sum(proportional_bytes(pid) for pid in session(self.process.pid))

    def figures(self) -> str:
        processes = len(session(self.process.pid))
        return f"healthy after {self.start_s:.0f} s, {self.memory() / 2**30:.1f} GiB in {processes} processes"


Waiting = Callable[[float, Path], None]
"""Called while nothing is healthy yet, with the seconds so far and the log."""


def silently(_seconds: float, _log: Path) -> None:
    """Wait without a word."""


@contextmanager
def serving(
    setup: Setup, scratch: Path, caches: Path | None = None, waiting: Waiting = silently
) -> Iterator[Server]:
    """Start a server, wait until it is healthy, and stop it at the end, come what may.

    ``scratch`` takes the log; ``caches``, which several servers may share one after the other,
    what vLLM and transformers keep. Raises `ServerFailed`.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    port, log = free_port(), scratch / "server.log"
    settings = environment(caches or scratch, setup.packages) | LOOPBACK | setup.way.settings
    if setup.way.compiles:
        del settings[COMPILER_OFF]
    with log.open("wb") as output:
        process = subprocess.Popen(
            serve_command(setup.python, setup.model.resolve(), port, *setup.way.options),
            cwd=scratch,
            env=settings,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # one session holds it and all that it starts, and nothing else
        )
    try:
        seconds = wait_until_healthy(process, port, log, waiting)
        yield Server(port, log, seconds, process)
    finally:
        stop(process)


def wait_until_healthy(
    process: subprocess.Popen[bytes], port: int, log: Path, waiting: Waiting, host: str = HOST
) -> float:
    """The seconds that it took."""
    start = time.monotonic()
    while not get_health(port, host):
        seconds = time.monotonic() - start
        if process.poll() is not None:
            raise ServerFailed(
                f"vllm serve left with exit code {process.returncode} after {seconds:.0f} s; "
                f"its log ends:\n{end_of(log)}"
            )
        if seconds > START_S:
            raise ServerFailed(f"vllm serve is not healthy after {START_S} s; its log ends:\n{end_of(log)}")
        waiting(seconds, log)
        time.sleep(LOOK_S)
    return time.monotonic() - start


def stop(process: subprocess.Popen[bytes]) -> None:
    """The polite signal to the first process, and after `STOP_S` the other one to all that is left."""
    try:
        process.terminate()
        wait_until_gone(process, STOP_S)
    finally:
        for pid in session(process.pid):
            kill(pid)
        wait_until_gone(process, STOP_S)


def wait_until_gone(process: subprocess.Popen[bytes], limit_s: float) -> None:
    """The whole session, or until the limit."""
    limit = time.monotonic() + limit_s
    while process.poll() is None or session(process.pid):
        if time.monotonic() > limit:
            return
        time.sleep(LOOK_S)


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it went by itself


def free_port() -> int:
    """One that nobody listens on at the moment."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


def get_health(port: int, host: str = HOST) -> bool:
    """Does ``/health`` answer 200? Past any proxy of the environment."""
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def session(leader: int) -> list[int]:
    """The processes of a session that still run; one that has ended and waits for its parent does not."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            _, _, rest = (entry / "stat").read_text("utf-8", "replace").rpartition(")")
        except OSError:
            continue  # it ended while we looked
        state, _, _, of_session = rest.split()[:4]
        if int(of_session) == leader and state not in "ZX":
            found.append(int(entry.name))
    return found


def proportional_bytes(pid: int) -> int:
    """``Pss`` of /proc: a page that n processes share counts as its nth part."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text("utf-8").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def end_of(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").splitlines()
    return "\n".join(shorten(line) for line in lines[-LOG_LINES:])


def shorten(line: str) -> str:
    return line if len(line) <= LOG_WIDTH else f"{line[:LOG_WIDTH]} …"
