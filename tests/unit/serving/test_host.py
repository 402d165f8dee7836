# SPDX-License-Identifier: Apache-2.0
"""The seam to the machine: bounded reads, programs that hang or never stop, permissions by uid."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from serving.machine import processes, sockets
from serving.machine.host import Host
from serving.machine.sockets import Socket
from unit.serving.machines import Machine


def test_what_is_absent_or_no_file_is_none_or_empty(machine: Machine) -> None:
    host = machine.host
    os.mkfifo(machine.root / "pipe")
    (machine.root / "loop").symlink_to("loop")

    for name in ("/nowhere", "/dev", "/pipe", "/loop", "/nul\0byte"):
        assert host.text(name) is None
        assert host.size(name) == 0
    assert host.names("/nowhere") == host.names("/pipe") == host.names("/nul\0byte") == []
    assert not host.exists("/loop")
    assert not host.permits("/loop", write=False)
    assert host.link("/dev") == ""


def test_a_file_of_any_claimed_size_is_not_read_into_memory(machine: Machine) -> None:
    with machine.write("proc/net/tcp", "").open("wb") as file:
        file.truncate(1 << 42)

    assert machine.host.text("/proc/net/tcp") is None


def test_bytes_that_are_no_text_are_replaced(machine: Machine) -> None:
    machine.write("etc/os-release", b"NAME=\xff\xfe\n")

    assert machine.host.text("/etc/os-release") == "NAME=\ufffd\ufffd\n"


@pytest.mark.parametrize(
    ("mode", "uid", "groups", "readable", "writable"),
    [
        (0o600, 0, (), True, True),
        (0o600, 1000, (), False, False),
        (0o060, 1000, (0,), True, True),
        (0o040, 1000, (0,), True, False),
        (0o604, 1000, (), True, False),
        (0o606, 1000, (0,), False, False),
    ],
)
def test_permissions_are_those_of_the_uid_that_is_asked_about(
    machine: Machine, mode: int, uid: int, groups: tuple[int, ...], readable: bool, writable: bool
) -> None:
    path = machine.write("file", "")
    path.chmod(mode)
    if (path.stat().st_uid, path.stat().st_gid) != (0, 0):
        pytest.skip("the test's files do not belong to root")
    host = replace(machine.host, uid=uid, groups=frozenset(groups))

    assert host.permits("/file", write=False) is readable
    assert host.permits("/file", write=True) is writable


def test_the_room_is_that_of_the_nearest_folder_that_exists(machine: Machine) -> None:
    asked: list[Path] = []
    host = replace(machine.host, measure=lambda path: asked.append(path))

    host.space("/root/.cache/not/yet/there")

    assert asked == [machine.root / "root"]


def test_the_user_of_this_machine_is_found_by_its_directory_service() -> None:
    user = Host().user

    assert user is not None
    assert user[0]


def test_npu_smi_is_found_beside_the_path(machine: Machine) -> None:
    machine.environment["PATH"] = "/usr/bin"

    assert machine.host.npu_smi == "/usr/local/bin/npu-smi"


def test_npu_smi_is_asked_in_english(machine: Machine) -> None:
    machine.program("usr/local/bin/npu-smi", 'echo "$LC_ALL $LANG"')
    machine.environment["LC_ALL"] = "zh_CN.UTF-8"

    assert machine.host.npu_smi_info.text == "C C\n"


# --- programs -------------------------------------------------------------------------------


def script(folder: Path, body: str) -> Path:
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_both_streams_and_the_exit_code_are_kept(tmp_path: Path) -> None:
    output = processes.run([script(tmp_path, "echo out; echo err >&2; exit 3")], os.environ, tmp_path, 10)

    assert sorted(output.text.split()) == ["err", "out"]
    assert output.exit_code == 3
    assert not output.complaint


def test_a_program_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    program = script(tmp_path, "echo before; sleep 300 & echo $! > child; wait")
    start = time.monotonic()

    output = processes.run([program], os.environ, tmp_path, 0.5)

    assert time.monotonic() - start < 5
    assert output.text == "before\n"
    assert output.complaint == "gave no answer in 0 s"
    assert not is_alive(int((tmp_path / "child").read_text()))


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that is dead and merely not reaped does not."""
    for _ in range(50):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return False
        if state == "Z":
            return False
        time.sleep(0.05)
    return True


def test_a_program_that_prints_without_end_is_cut_off(tmp_path: Path) -> None:
    output = processes.run([script(tmp_path, "yes")], os.environ, tmp_path, 30)

    assert len(output.text) == processes.OUTPUT_LIMIT
    assert output.complaint.startswith("printed more than")
    assert not output.succeeded


@pytest.mark.parametrize("name", ["absent", "folder"])
def test_what_cannot_be_started_says_why(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()

    output = processes.run([tmp_path / name], os.environ, tmp_path, 5)

    assert output.complaint.startswith("cannot be started (")
    assert output.exit_code is None


# --- sockets -------------------------------------------------------------------------------

# A listener, a connection to it and one that has just ended, made by hand in the layout of Linux 6.1.
TCP = (
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    "   0: 0100007F:226C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 31337"
    " 1 0000000000000000 100 0 0 10 0\n"
    "   1: 0100007F:226C 0100007F:9C40 01 00000000:00000000 02:000003E8 00000000     0        0 31338"
    " 2 0000000000000000 20 4 30 10 -1\n"
    "   2: 0100007F:9C41 0100007F:226C 06 00000000:00000000 03:00001770 00000000     0        0 0"
    " 3 0000000000000000\n"
)


def test_sockets_are_read_with_their_ports_and_states() -> None:
    found = sockets.parse(TCP)

    assert [(s.port, s.listens, s.holds_its_port, s.inode) for s in found] == [
        (8812, True, True, 31337),
        (8812, False, True, 31338),
        (40001, False, False, 0),
    ]


def test_the_sockets_of_this_machine_are_read() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]

        found = sockets.of(Host())

        assert found is not None
        (mine,) = (s for s in found if s.port == port and s.listens)
        assert sockets.owner(Host(), mine).startswith(f"pid {os.getpid()}, ")


def test_an_owner_that_cannot_be_seen_is_no_owner(machine: Machine) -> None:
    machine.write("proc/1/fd", "not a folder")

    assert sockets.owner(machine.host, Socket(1, sockets.LISTEN, 5)) == ""
