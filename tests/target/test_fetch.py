# SPDX-License-Identifier: Apache-2.0
"""``kit fetch`` with the huggingface_hub that transformers 5.5.3 needs, against a hub on loopback."""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from patchkit.errors import KitError, Refused
from serving.download import fetch
from serving.download.fetch import FetchRequest, NotFetched
from target import hub as stand_in
from target.hub import COMMIT, REPO, Hub
from unit.serving.model_folders import ModelFolder

BIG = 32 << 20
"""Bytes. The library keeps what has arrived in steps of 10 MB."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with a small whole model."""
    folder = ModelFolder().write(tmp_path / "repository")
    with stand_in.running(folder) as found:
        monkeypatch.setenv("HF_ENDPOINT", found.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield found


def request(tmp_path: Path, revision: str | None = None, repo: str = REPO) -> FetchRequest:
    return FetchRequest(tmp_path / "to", repo=repo, revision=revision, python=Path(sys.executable))


def failure(wanted: FetchRequest) -> KitError:
    with pytest.raises(KitError) as caught:
        fetch.run(wanted)
    return caught.value


def test_the_folder_is_what_the_hub_has_and_is_checked(hub: Hub, tmp_path: Path) -> None:
    fetched = fetch.run(request(tmp_path))
    for file in hub.files():
        copy = tmp_path / "to" / file.relative_to(hub.folder)
        assert copy.read_bytes() == file.read_bytes()
    assert fetched.report.failed is False
    assert fetched.report.shards > 0


def test_a_branch_is_told_by_its_commit_and_how_to_pin_it(hub: Hub, tmp_path: Path) -> None:  # noqa: ARG001
    fetched = fetch.run(request(tmp_path))
    assert fetched.revision == COMMIT
    assert not fetched.is_pinned
    assert f"--revision {COMMIT}" in fetch.text(fetched)


def test_a_pinned_commit_is_taken_as_it_is(hub: Hub, tmp_path: Path) -> None:  # noqa: ARG001
    fetched = fetch.run(request(tmp_path, revision=COMMIT))
    assert fetched.is_pinned
    assert "--revision" not in fetch.text(fetched)


def test_a_connection_that_breaks_goes_on_where_it_broke(hub: Hub, tmp_path: Path) -> None:
    (hub.folder / "aaa.bin").write_bytes(b"\7" * BIG)
    hub.budget, hub.comes_back = BIG - (4 << 20), True
    fetched = fetch.run(request(tmp_path))
    assert not fetched.report.failed
    assert (tmp_path / "to" / "aaa.bin").read_bytes() == b"\7" * BIG
    assert [int(text.removeprefix("bytes=").partition("-")[0]) >= 10_000_000 for text in hub.ranges] == [True]


def test_after_an_outage_only_what_is_missing_is_fetched(hub: Hub, tmp_path: Path) -> None:
    """The library, as of 1.33, begins anew a file that was under way, and keeps every whole one."""
    (hub.folder / "aaa.bin").write_bytes(b"\7" * BIG)
    others = sum(file.stat().st_size for file in hub.files()) - BIG
    hub.budget = BIG - (4 << 20)

    error = failure(request(tmp_path))
    assert isinstance(error, NotFetched)
    assert "every whole file is kept" in str(error)

    hub.budget, hub.sent = None, 0
    fetched = fetch.run(request(tmp_path))

    assert not fetched.report.failed
    assert (tmp_path / "to" / "aaa.bin").read_bytes() == b"\7" * BIG
    assert BIG <= hub.sent < BIG + others


def test_what_a_killed_fetch_left_is_swept_and_what_can_be_gone_on_with_is_not(
    hub: Hub,  # noqa: ARG001
    tmp_path: Path,
) -> None:
    work = tmp_path / "to" / ".cache" / "huggingface" / "download"
    work.mkdir(parents=True)
    of_133 = work / f"abc.{'0' * 64}.12ab34cd.incomplete"
    of_15 = work / f"abc.{'0' * 64}.incomplete"
    for path in (of_133, of_15):
        path.write_bytes(b"half")
    fetch.run(request(tmp_path))
    assert not of_133.exists()
    assert of_15.exists()


def test_two_fetches_into_one_folder_do_not_meet(hub: Hub, tmp_path: Path) -> None:
    lock = tmp_path / "to" / ".cache" / "kit-fetch.lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        error = failure(request(tmp_path))
    assert isinstance(error, Refused)
    assert "another kit fetch is at work" in str(error)
    assert hub.sent == 0


def test_a_whole_folder_is_not_fetched_again(hub: Hub, tmp_path: Path) -> None:
    fetch.run(request(tmp_path))
    hub.sent = 0
    fetch.run(request(tmp_path))
    assert hub.sent == 0


def test_a_hub_that_is_away_is_not_taken_for_a_whole_folder(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library by itself returns the folder that is there, with a warning alone."""
    fetch.run(request(tmp_path))
    assert hub.files()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    error = failure(request(tmp_path))
    assert "the hub cannot be reached (" in str(error)
    assert "HF_ENDPOINT" in error.next_step
    assert "--source modelscope" in error.next_step


def test_a_revision_that_is_not_there(hub: Hub, tmp_path: Path) -> None:  # noqa: ARG001
    error = failure(request(tmp_path, revision="nosuch"))
    assert isinstance(error, Refused)
    assert "huggingface's some/model has no revision nosuch" in str(error)
    assert not (tmp_path / "to").exists()


def test_a_repository_that_is_not_there(hub: Hub, tmp_path: Path) -> None:  # noqa: ARG001
    error = failure(request(tmp_path, repo="some/other"))
    assert isinstance(error, Refused)
    assert "some/other is not there, or not for you" in str(error)


def test_a_disk_too_small_is_told_before_the_first_byte(hub: Hub, tmp_path: Path) -> None:
    hub.claimed_bytes = 1 << 60
    error = failure(request(tmp_path))
    assert "has not enough room" in str(error)
    assert f"{1 << 60} bytes" not in str(error)  # what is there is taken off, all other files added
    assert hub.sent == 0


def test_a_hub_that_fails(hub: Hub, tmp_path: Path) -> None:
    hub.status = 500
    error = failure(request(tmp_path))
    assert "the hub failed (" in str(error)
    assert "500" in str(error)


def test_the_offline_switch_is_named(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    error = failure(request(tmp_path))
    assert "is told to stay offline" in str(error)
    assert "unset HF_HUB_OFFLINE" in error.next_step


def test_a_folder_that_must_not_be_written_to(hub: Hub, tmp_path: Path) -> None:  # noqa: ARG001
    (tmp_path / "to").write_text("a file of this name")
    error = failure(request(tmp_path))
    assert "Traceback" not in str(error)
    assert str(tmp_path / "to") in str(error)
