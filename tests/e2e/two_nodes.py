# SPDX-License-Identifier: Apache-2.0
"""Two machines, as far as the network can tell: a namespace each, a link between them, and one to the tests.

vLLM's own executor for several nodes runs in them, without Ray: ``--nnodes``, ``--node-rank``,
``--master-addr``, and ``--headless`` on the second.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.server import LOOK_S, Server, Setup, Way, free_port, session, silently, stop, wait_until_healthy
from tiny.launch import PLUGINS, environment, serve_command

ADDRESSES = ("198.18.0.1", "198.18.0.2")
"""Of the two nodes, in the range that is kept for tests of networks."""

OUTSIDE, INSIDE = "198.18.1.1", "198.18.1.2"
"""The link over which the tests reach the first node."""

NIC = "node"
"""The interface of each node towards the other."""

MASTER_PORT = 29501

ASCEND_EXECUTOR = Way(
    ("--max-logprobs=-1",), {"VLLM_PLUGINS": ",".join([*PLUGINS, "step3p7_sandbox_executor"])}
)
"""The executor that vllm-ascend puts in the place of vLLM's."""


@dataclass(frozen=True)
class Node:
    """``name`` is its network namespace's."""

    name: str
    rank: int

    @property
    def address(self) -> str:
        return ADDRESSES[self.rank]

    def command(self, *words: str) -> list[str]:
        return ["ip", "netns", "exec", self.name, *words]


@dataclass(frozen=True)
class Launched:
    """One node's ``vllm serve``, and its log."""

    process: subprocess.Popen[bytes]
    log: Path

    def workers(self) -> list[int]:
        """The processes that hold a part of the model."""
        return [pid for pid in session(self.process.pid) if title(pid).startswith("VLLM::Worker")]

    def says(self, words: str) -> bool:
        """Are they in its log?"""
        return words in self.log.read_text("utf-8", "replace")

    def ends_within(self, limit_s: float) -> bool:
        """Does all of it end by itself?"""
        limit = time.monotonic() + limit_s
        while self.process.poll() is None or session(self.process.pid):
            if time.monotonic() > limit:
                return False
            time.sleep(LOOK_S)
        return True


@dataclass(frozen=True)
class Pair:
    """One server over both nodes. ``first`` answers; ``second`` has no HTTP server."""

    server: Server
    first: Launched
    second: Launched


@contextmanager
def two_nodes(name: str) -> Iterator[tuple[Node, Node]]:
    """Needs root and iproute2. ``name`` tells one pair of namespaces from another."""
    nodes = (Node(f"{name}-0", 0), Node(f"{name}-1", 1))
    try:
        for node in nodes:
            ip("netns", "add", node.name)
            ip("-n", node.name, "link", "set", "lo", "up")
        link(nodes[0].name, NIC, nodes[1].name, NIC)
        for node in nodes:
            rise(f"{node.address}/24", NIC, node.name)
        outside = f"{name}-out"
        ip("link", "add", outside, "type", "veth", "peer", "name", "out", "netns", nodes[0].name)
        rise(f"{INSIDE}/24", "out", nodes[0].name)
        rise(f"{OUTSIDE}/24", outside)
        yield nodes
    finally:
        for node in nodes:  # the links go with them
            subprocess.run(["ip", "netns", "del", node.name], check=False, capture_output=True)


def link(first: str, name_there: str, second: str, name_here: str) -> None:
    ends = ["type", "veth", "peer", "name", name_here, "netns", second]
    ip("link", "add", name_there, "netns", first, *ends)


def rise(address: str, interface: str, namespace: str = "") -> None:
    where = ["-n", namespace] if namespace else []
    ip(*where, "address", "add", address, "dev", interface)
    ip(*where, "link", "set", interface, "up")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@contextmanager
def serving_on(nodes: tuple[Node, Node], setup: Setup, scratch: Path) -> Iterator[Pair]:
    """One server over both, healthy; both are stopped at the end, come what may. Raises `ServerFailed`."""
    port = free_port()
    launched: list[Launched] = []
    try:
        for node in nodes:
            launched.append(launch(node, setup, scratch, port))
        first, second = launched
        seconds = wait_until_healthy(first.process, port, first.log, silently, INSIDE)
        yield Pair(Server(port, first.log, seconds, first.process, INSIDE), first, second)
    finally:
        for one in launched:
            stop(one.process)


def launch(node: Node, setup: Setup, scratch: Path, port: int) -> Launched:
    """What is typed on one node."""
    own = scratch / node.name
    own.mkdir(parents=True)
    network = {"VLLM_HOST_IP": node.address, "GLOO_SOCKET_IFNAME": NIC}
    options = (
        "--pipeline-parallel-size=2",
        "--nnodes=2",
        f"--node-rank={node.rank}",
        f"--master-addr={ADDRESSES[0]}",
        f"--master-port={MASTER_PORT}",
        "--host=0.0.0.0",
        *(["--headless"] if node.rank else []),
        *setup.way.options,
    )
    log = own / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            node.command(*serve_command(setup.python, setup.model.resolve(), port, *options)),
            cwd=own,
            env=environment(own, setup.packages) | network | setup.way.settings,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Launched(process, log)


def title(pid: int) -> str:
    """What the process calls itself."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""  # it ended while we looked
