# SPDX-License-Identifier: Apache-2.0
"""The servers of ``kit accept``: however one ends, the run hears why, and no process of it is left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import tree
from serving.accept import guardian, server
from serving.accept.server import ServerFailed, Start
from serving.client.exchange import NoReply
from unit.serving import fake_vllm
from unit.serving.fake_vllm import FakeVllm

LIMIT_S = 30.0


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeVllm:
    monkeypatch.setattr(server, "GRACE_S", 0.3)
    monkeypatch.setattr(server, "_POLL_S", 0.05)
    return FakeVllm(tmp_path / "root").write()


def start(vllm: FakeVllm, tmp_path: Path, limit_s: float = LIMIT_S) -> Start:
    return Start(
        vllm=(sys.executable, "-P", "-m", "vllm.entrypoints.cli.main"),
        model=tmp_path / "model",
        arguments=("--tensor-parallel-size", "8"),
        log=tmp_path / "server.log",
        record=tmp_path / server.RECORD,
        packages=vllm.root,
        limit_s=limit_s,
    )


def silently(_text: str) -> None:
    """Nobody listens."""


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_healthy_server_is_gone_with_its_worker_at_the_end_of_the_block(
    vllm: FakeVllm, tmp_path: Path
) -> None:
    with server.serving(start(vllm, tmp_path), silently) as running:
        assert running.is_running
        assert len(vllm.living()) == 2
        assert (tmp_path / server.RECORD).exists()
    assert vllm.living() == []
    assert not (tmp_path / server.RECORD).exists()
    [started] = vllm.starts
    assert started["words"][:4] == ["serve", str(tmp_path / "model"), "--tensor-parallel-size", "8"]
    assert started["words"][4:6] == ["--host", "127.0.0.1"]


def test_the_server_has_no_key_and_the_kits_own_settings(
    vllm: FakeVllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    with server.serving(start(vllm, tmp_path), silently):
        pass
    found = vllm.starts[0]["environment"]
    assert "VLLM_API_KEY" not in found
    assert found["HF_HUB_OFFLINE"] == "1"


def test_one_that_ignores_the_polite_signal_is_gone_all_the_same(vllm: FakeVllm, tmp_path: Path) -> None:
    vllm.plan(stubborn=True)
    with server.serving(start(vllm, tmp_path), silently):
        pass
    assert vllm.living() == []


def failure_of(given: Start) -> ServerFailed:
    """What is said of a server that is never healthy."""
    try:
        with server.serving(given, silently):
            pytest.fail("it was healthy")
    except ServerFailed as failure:
        return failure


def test_one_that_dies_says_of_what(vllm: FakeVllm, tmp_path: Path) -> None:
    vllm.plan(dies=fake_vllm.OUT_OF_MEMORY)
    failure = failure_of(start(vllm, tmp_path))
    assert "ended with exit code 3 after" in failure.what
    assert re.search(r"server\.log shows [a-z-]+: ", failure.what)
    assert failure.step("serve.x").commands == (f"vllm serve {tmp_path / 'model'} --tensor-parallel-size 8",)
    assert vllm.living() == []


def test_one_that_dies_of_something_unknown_says_so(vllm: FakeVllm, tmp_path: Path) -> None:
    vllm.plan(dies="vLLM: ZorkError: grue")
    what = failure_of(start(vllm, tmp_path)).what
    assert "the kit knows nothing in server.log that explains it (vLLM: ZorkError: grue)" in what


def test_one_that_is_never_healthy_is_ended(vllm: FakeVllm, tmp_path: Path) -> None:
    vllm.plan(never=True)
    assert "not healthy after 1 s (--start-limit)" in failure_of(start(vllm, tmp_path, limit_s=1)).what
    assert vllm.living() == []


def test_a_program_that_cannot_be_started_is_a_sentence(vllm: FakeVllm, tmp_path: Path) -> None:
    given = replace(start(vllm, tmp_path), vllm=("/no/such/python",))
    assert "exit code 127" in failure_of(given).what
    assert "/no/such/python cannot be started" in given.log.read_text()


def test_an_answer_that_does_not_come_is_told_from_a_server_that_died(vllm: FakeVllm, tmp_path: Path) -> None:
    with server.serving(start(vllm, tmp_path), silently) as running:
        assert (
            "the server runs, and gave no usable answer: too late" in running.failed(NoReply("too late")).what
        )
        os.kill(vllm.starts[0]["pids"][0], signal.SIGKILL)
        assert "ended with exit code 137 while it was asked" in running.failed(NoReply("broken")).what
    assert vllm.living() == []


def test_whatever_is_raised_in_the_block_no_process_is_left(vllm: FakeVllm, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), server.serving(start(vllm, tmp_path), silently):
        raise KeyboardInterrupt
    assert vllm.living() == []


# --- the kit is killed ----------------------------------------------------------------------

PROGRAM = """\
import sys
from pathlib import Path
sys.path[:0] = {paths!r}
from serving.accept import server
from serving.accept.server import Start
server.GRACE_S = 0.3
given = Start({vllm!r}, Path({model!r}), (), Path({log!r}), Path({record!r}), Path({root!r}))
with server.serving(given, print):
    print("healthy", flush=True)
    sys.stdin.read()
"""


def run_and_hold(vllm: FakeVllm, tmp_path: Path) -> subprocess.Popen[bytes]:
    """A process that has a healthy server, and waits."""
    given = start(vllm, tmp_path)
    program = PROGRAM.format(
        paths=[str(tree.PROJECT / "scripts"), str(tree.PROJECT / "tests")],
        vllm=given.vllm,
        model=str(given.model),
        log=str(given.log),
        record=str(given.record),
        root=str(vllm.root),
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path
    )
    assert process.stdout
    for line in process.stdout:
        if line == b"healthy\n":
            return process
    raise AssertionError(given.log.read_text())


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(LIMIT_S)
    for stream in (process.stdin, process.stdout):
        assert stream
        stream.close()


def guardian_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_killed_kit_leaves_no_server(vllm: FakeVllm, tmp_path: Path) -> None:
    process = run_and_hold(vllm, tmp_path)
    kill(process)
    until(lambda: vllm.living() == [])
    assert not server.sweep(tmp_path / server.RECORD)
    assert not (tmp_path / server.RECORD).exists()


def test_where_the_guardian_was_killed_too_the_next_run_ends_the_server(
    vllm: FakeVllm, tmp_path: Path
) -> None:
    process = run_and_hold(vllm, tmp_path)
    os.kill(guardian_of(vllm.starts[0]["pids"][0]), signal.SIGKILL)
    kill(process)
    assert len(vllm.living()) == 2
    assert server.sweep(tmp_path / server.RECORD)
    assert vllm.living() == []


def test_a_worker_whose_server_died_is_known_by_its_mark(vllm: FakeVllm, tmp_path: Path) -> None:
    process = run_and_hold(vllm, tmp_path)
    leader = vllm.starts[0]["pids"][0]
    os.kill(guardian_of(leader), signal.SIGKILL)
    kill(process)
    os.kill(leader, signal.SIGKILL)
    until(lambda: len(vllm.living()) == 1)
    assert server.sweep(tmp_path / server.RECORD)
    assert vllm.living() == []


def test_a_process_of_somebody_else_with_that_number_is_left_alone(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    record = tmp_path / server.RECORD
    values = {"session": other.pid, "mark": "x", "boot": server._boot(), "started": 1}
    record.write_text(json.dumps(values))
    assert not server.sweep(record)
    assert other.poll() is None
    assert not record.exists()
    other.communicate(b"\n", LIMIT_S)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"session": "x"}', '{"session": 1, "mark": ""}'])
def test_a_record_that_is_none_ends_nothing(text: str, tmp_path: Path) -> None:
    record = tmp_path / server.RECORD
    record.write_text(text)
    assert not server.sweep(record)
    assert not record.exists()


def test_the_members_of_a_session_are_its_own() -> None:
    assert os.getpid() in guardian.members(os.getsid(0))
    assert os.getpid() not in guardian.members(os.getsid(0) + 1)
