# SPDX-License-Identifier: Apache-2.0
"""What the one writer keeps, refuses and leaves, on real files."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import py_compile
import shutil
import signal
import stat
import subprocess
import threading
import time
from pathlib import Path

import pytest

import tree
from patchkit import lock, target, transaction
from patchkit.errors import NotPutBack, PutBack, Refused
from patchkit.release import Release

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="changes owners, so it needs root")


def apply(small_set: Release, root: Path) -> transaction.Outcome:
    return transaction.apply(small_set, target.in_folder(small_set.packages, root))


def revert(small_set: Release, root: Path) -> transaction.Outcome:
    return transaction.revert(small_set, target.in_folder(small_set.packages, root))


def test_apply_twice_then_revert(small_set: Release, root: Path) -> None:
    before = tree.snapshot(root)

    first, second = apply(small_set, root), apply(small_set, root)
    assert len(first.changes) == 5
    assert second.changes == ()
    registry = (root / tree.REGISTRY).read_text()
    assert registry.count("'new'") == 1

    revert(small_set, root)
    assert tree.snapshot(root) == before
    assert not (root / tree.MODEL).exists()


def test_the_crlf_file_stays_crlf_from_top_to_bottom(small_set: Release, root: Path) -> None:
    apply(small_set, root)
    lines = (root / tree.MOE).read_bytes().split(b"\n")[:-1]
    assert lines
    assert all(line.endswith(b"\r") for line in lines)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755, 0o444])
def test_mode_is_kept_through_apply_and_revert(small_set: Release, root: Path, mode: int) -> None:
    path = root / tree.REGISTRY
    path.chmod(mode)
    apply(small_set, root)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    revert(small_set, root)
    assert stat.S_IMODE(path.stat().st_mode) == mode


@needs_root
def test_owner_is_kept_and_a_new_file_gets_its_folders(small_set: Release, root: Path) -> None:
    os.chown(root / tree.REGISTRY, 1234, 2345)
    os.chown((root / tree.MODEL).parent, 3456, 4567)
    apply(small_set, root)
    replaced, created = (root / tree.REGISTRY).stat(), (root / tree.MODEL).stat()
    assert (replaced.st_uid, replaced.st_gid) == (1234, 2345)
    assert (created.st_uid, created.st_gid) == (3456, 4567)
    assert stat.S_IMODE(created.st_mode) & 0o111 == 0


def test_a_new_file_is_readable_whatever_the_umask(small_set: Release, root: Path) -> None:
    previous = os.umask(0o077)
    try:
        apply(small_set, root)
    finally:
        os.umask(previous)
    folder_mode = stat.S_IMODE((root / tree.MODEL).parent.stat().st_mode)
    assert stat.S_IMODE((root / tree.MODEL).stat().st_mode) == folder_mode & 0o666


def test_a_hard_link_elsewhere_keeps_the_old_content(small_set: Release, root: Path, tmp_path: Path) -> None:
    cache = tmp_path / "package-cache.py"
    os.link(root / tree.REGISTRY, cache)
    apply(small_set, root)
    assert cache.read_bytes() == tree.PRISTINE[tree.REGISTRY]


@pytest.mark.parametrize(
    "invalidation",
    [py_compile.PycInvalidationMode.UNCHECKED_HASH, py_compile.PycInvalidationMode.CHECKED_HASH],
)
def test_byte_code_that_python_would_run_unchecked_is_removed(
    small_set: Release, root: Path, invalidation: py_compile.PycInvalidationMode
) -> None:
    source = root / tree.TOKENIZERS
    pyc = Path(py_compile.compile(str(source), invalidation_mode=invalidation, doraise=True) or "")
    apply(small_set, root)
    assert not pyc.exists()


def test_byte_code_of_equal_size_and_second_is_removed(small_set: Release, root: Path) -> None:
    source = root / tree.TOKENIZERS
    pyc = Path(py_compile.compile(str(source), doraise=True) or "")
    header = bytearray(pyc.read_bytes())
    header[12:16] = len(tree.APPLIED[tree.TOKENIZERS]).to_bytes(4, "little")
    pyc.write_bytes(header)
    apply(small_set, root)
    assert not pyc.exists()


def test_byte_code_left_by_a_killed_run_is_removed_by_a_run_with_nothing_to_do(
    small_set: Release, root: Path
) -> None:
    apply(small_set, root)
    pyc = Path(importlib.util.cache_from_source(str(root / tree.TOKENIZERS)))
    old_code = (
        b"\xa7\r\r\n"
        + (1).to_bytes(4, "little")
        + importlib.util.source_hash(tree.PRISTINE[tree.TOKENIZERS] or b"")
    )
    tree.write(pyc, old_code)

    assert apply(small_set, root).changes == ()
    assert not pyc.exists()


def test_byte_code_that_fits_is_left(small_set: Release, root: Path) -> None:
    apply(small_set, root)
    pyc = Path(py_compile.compile(str(root / tree.TOKENIZERS), doraise=True) or "")
    neighbour = Path(py_compile.compile(str(root / tree.NEIGHBOUR), doraise=True) or "")
    apply(small_set, root)
    assert pyc.exists()
    assert neighbour.exists()


def test_byte_code_under_a_cache_prefix_is_removed(small_set: Release, root: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "pycache"
    found = target.in_folder(small_set.packages, root)
    found = target.Target(found.locations, python=None, pycache_prefix=prefix)
    pyc = tree.write(prefix / str(root / tree.REGISTRY)[1:], b"")
    pyc = tree.write(pyc.parent / "registry.cpython-311.pyc", b"stale")
    transaction.apply(small_set, found)
    assert not pyc.exists()


def test_no_temporary_file_is_left(small_set: Release, root: Path) -> None:
    apply(small_set, root)
    assert set(tree.snapshot(root)) == {
        *tree.ORDER,
        tree.NEIGHBOUR,
        "vllm/__init__.py",
        "vllm/_version.py",
        "vllm_ascend/__init__.py",
        "vllm_ascend/_version.py",
    }


def test_a_file_named_almost_like_a_temporary_one_is_left(small_set: Release, root: Path) -> None:
    mine = tree.write(root / "vllm/models/.registry.py.step3p7-kit.notes", b"mine")
    old = tree.write(root / "vllm/models/.registry.py.step3p7-kit.4711.new", b"left by a killed run")
    apply(small_set, root)
    assert mine.exists()
    assert not old.exists()


def test_a_file_changed_between_look_and_rename_puts_everything_back(
    small_set: Release, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace
    before = tree.snapshot(root)

    def meddle(source: Path, destination: Path) -> None:
        replace(source, destination)
        if Path(destination) == root / tree.TOKENIZERS:
            (root / tree.REGISTRY).write_bytes(b"somebody else's\n")

    monkeypatch.setattr(os, "replace", meddle)
    with pytest.raises(PutBack, match=r"registry\.py does not hold what it should.*as it was before"):
        apply(small_set, root)
    expected = before | {tree.REGISTRY: b"somebody else's\n"}
    assert tree.snapshot(root) == expected


def test_somebodys_newer_text_is_noticed_and_not_undone(
    small_set: Release, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def edited_after(source: Path, destination: Path) -> None:
        replace(source, destination)
        if Path(destination) == root / tree.ACTIVATION:
            (root / tree.ACTIVATION).write_bytes(b"a user's edit\n")

    monkeypatch.setattr(os, "replace", edited_after)
    with pytest.raises(NotPutBack, match=r"read back.*activation\.py could not be put back") as caught:
        apply(small_set, root)
    assert caught.value.left_changed == (str(root / tree.ACTIVATION),)
    assert (root / tree.ACTIVATION).read_bytes() == b"a user's edit\n"
    others = {path: state for path, state in tree.states(root).items() if path != tree.ACTIVATION}
    assert set(others.values()) == {"pristine"}


def test_two_vllms_that_share_a_vllm_ascend_exclude_each_other(
    small_set: Release, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "WAIT_S", 0.0)
    other = tree.write_packages(tmp_path / "other")
    shutil.rmtree(other / "vllm_ascend")
    (other / "vllm_ascend").symlink_to(root / "vllm_ascend")
    with lock.held(root / "vllm_ascend"), pytest.raises(Refused, match="another run of the kit holds"):
        apply(small_set, other)


def test_a_signal_during_the_renames_waits_for_their_end(
    small_set: Release, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def signalled(source: Path, destination: Path) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        replace(source, destination)

    monkeypatch.setattr(os, "replace", signalled)
    apply(small_set, root)
    assert set(tree.states(root).values()) == {"applied"}


def test_a_second_run_waits_for_the_first(small_set: Release, root: Path) -> None:
    descriptor = os.open(root / "vllm", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    release = threading.Timer(0.4, os.close, [descriptor])
    release.start()
    began = time.monotonic()
    apply(small_set, root)
    assert time.monotonic() - began > 0.3
    release.join()


def test_a_second_run_that_waited_in_vain_says_who_holds_the_lock(
    small_set: Release, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "WAIT_S", 0.2)
    holder = subprocess.Popen(["flock", str(root / "vllm"), "sleep", "30"])
    try:
        deadline = time.monotonic() + 10
        while not lock_is_held(root / "vllm") and time.monotonic() < deadline:
            time.sleep(0.02)
        before = tree.snapshot(root)
        with pytest.raises(Refused, match=rf"process {holder.pid} \(flock .*\); nothing was changed"):
            apply(small_set, root)
        assert tree.snapshot(root) == before
    finally:
        holder.kill()
        holder.wait()


def lock_is_held(folder: Path) -> bool:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def test_two_runs_at_once_do_the_job_once(small_set: Release, root: Path) -> None:
    outcomes: list[int] = []
    threads = [
        threading.Thread(target=lambda: outcomes.append(len(apply(small_set, root).changes)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [0, 0, 0, 5]
    assert set(tree.states(root).values()) == {"applied"}
