# SPDX-License-Identifier: Apache-2.0
"""The TCP sockets of this network namespace, from ``/proc/net/tcp`` and ``tcp6``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from .host import Host

LISTEN = 0x0A
_TIME_WAIT = 0x06

# "  0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000  0 45678 1 ...":
# local address:port, remote, state, queues, timer, retransmits, uid, timeout, inode.
_ROW = re.compile(
    r"\s*\d{1,9}: ([0-9A-F]{8}|[0-9A-F]{32}):([0-9A-F]{4}) [0-9A-F]{8,32}:[0-9A-F]{4} ([0-9A-F]{2})"
    r" \S{17} \S{11} \S{8}\s+\d{1,10}\s+\d{1,10} (\d{1,19}) ",
    re.ASCII,
)
_MOST_PROCESSES = 4096
_MOST_DESCRIPTORS = 4096


@dataclass(frozen=True)
class Socket:
    """One end of a TCP connection, or a listener, on this machine."""

    port: int
    state: int
    inode: int

    @property
    def listens(self) -> bool:
        return self.state == LISTEN

    @property
    def holds_its_port(self) -> bool:
        return self.state != _TIME_WAIT


def parse(text: str) -> tuple[Socket, ...]:
    """The rows that are understood; every other line is passed over."""
    rows = (_ROW.match(line) for line in text.splitlines())
    return tuple(Socket(int(row[2], 16), int(row[3], 16), int(row[4])) for row in rows if row)


def of(host: Host) -> tuple[Socket, ...] | None:
    """All TCP sockets, or None where neither table can be read."""
    tables = [host.text(f"/proc/net/{name}") for name in ("tcp", "tcp6")]
    if tables == [None, None]:
        return None
    return tuple(socket for table in tables if table is not None for socket in parse(table))


def owner(host: Host, socket: Socket) -> str:
    """The process that holds a socket ("pid 17, python3"), or "" where that cannot be seen."""
    wanted = f"socket:[{socket.inode}]"
    for pid in islice(filter(str.isdecimal, host.names("/proc")), _MOST_PROCESSES):
        folder = f"/proc/{pid}/fd"
        if wanted in _links(host, folder):
            name = (host.text(f"/proc/{pid}/comm") or "").strip()
            return f"pid {pid}, {name}" if name else f"pid {pid}"
    return ""


def _links(host: Host, folder: str) -> Iterable[str]:
    return (host.link(f"{folder}/{name}") for name in islice(host.names(folder), _MOST_DESCRIPTORS))
