# SPDX-License-Identifier: Apache-2.0
"""``kit fetch`` with stand-ins for the two libraries that take exactly the arguments of the real ones.

The real huggingface_hub, with a hub on loopback, is in tests/target/test_fetch.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import tree
from patchkit.errors import KitError, Refused
from serving.download import fetch, fetch_program
from serving.download.fetch import FetchRequest, NotFetched, Source
from serving.machine import reference
from unit.serving.model_folders import ModelFolder

COMMIT = "89abcdef" * 5

# The parameters of snapshot_download in modelscope 1.40.2, as inspect.signature shows them.
MODELSCOPE = """\
import os, shutil


def snapshot_download(
    model_id=None, revision=None, cache_dir=None, user_agent=None, local_files_only=False, cookies=None,
    ignore_file_pattern=None, allow_file_pattern=None, local_dir=None, allow_patterns=None,
    ignore_patterns=None, max_workers=None, repo_id=None, repo_type=None, progress_callbacks=None,
    token=None, endpoint=None,
):
    {what}
    shutil.copytree(os.environ["HUB_FOLDER"], local_dir, dirs_exist_ok=True)
    return local_dir
"""

# Of huggingface_hub 1.33.0. Its resume_download, of old, is not among them.
HUGGINGFACE = """\
import os, shutil
from types import SimpleNamespace


class HfApi:
    def model_info(
        self, repo_id, *, revision=None, timeout=None, securityStatus=None, files_metadata=False, expand=None,
        token=None,
    ):
        return SimpleNamespace(sha="{commit}", siblings=[SimpleNamespace(size=1)])


def snapshot_download(
    repo_id, *, repo_type=None, revision=None, cache_dir=None, local_dir=None, library_name=None,
    library_version=None, user_agent=None, etag_timeout=10, force_download=False, token=None,
    local_files_only=False, allow_patterns=None, ignore_patterns=None, max_workers=8, tqdm_class=None,
    headers=None, endpoint=None, dry_run=False,
):
    {what}
    assert revision == "{commit}"
    shutil.copytree(os.environ["HUB_FOLDER"], local_dir, dirs_exist_ok=True)
"""


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages for the child, and a hub whose one repository is a small whole model."""
    folder = tmp_path / "libraries"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("HUB_FOLDER", str(ModelFolder().write(tmp_path / "repository")))
    return folder


def install(libraries: Path, name: str, text: str, what: str = "pass") -> None:
    (libraries / f"{name}.py").write_text(text.replace("{what}", what).replace("{commit}", COMMIT))


def request(tmp_path: Path, source: Source, revision: str | None = None, repo: str = "a/b") -> FetchRequest:
    return FetchRequest(tmp_path / "to", source, repo, revision, Path(sys.executable))


def failure(wanted: FetchRequest) -> KitError:
    with pytest.raises(KitError) as caught:
        fetch.run(wanted)
    return caught.value


def test_modelscope_takes_the_arguments_and_the_folder_is_checked(libraries: Path, tmp_path: Path) -> None:
    install(libraries, "modelscope", MODELSCOPE)
    fetched = fetch.run(request(tmp_path, Source.MODELSCOPE))
    assert fetched.revision == "master"
    assert not fetched.report.failed
    assert "master may move" in fetch.text(fetched)


def test_modelscope_is_given_the_revision(libraries: Path, tmp_path: Path) -> None:
    install(libraries, "modelscope", MODELSCOPE, what="assert revision == 'v1', revision")
    assert fetch.run(request(tmp_path, Source.MODELSCOPE, "v1")).revision == "v1"


def test_huggingface_takes_the_arguments_and_names_the_commit(libraries: Path, tmp_path: Path) -> None:
    install(libraries, "huggingface_hub", HUGGINGFACE)
    fetched = fetch.run(request(tmp_path, Source.HUGGINGFACE))
    assert fetched.revision == COMMIT
    assert fetch.as_json(fetched)["check"]["failed"] is False


def test_a_download_that_lacks_a_shard_is_a_fetch_whose_check_fails(libraries: Path, tmp_path: Path) -> None:
    install(libraries, "huggingface_hub", HUGGINGFACE)
    next(Path(os.environ["HUB_FOLDER"]).glob("*.safetensors")).unlink()
    assert fetch.run(request(tmp_path, Source.HUGGINGFACE)).report.failed


@pytest.mark.parametrize("source", list(Source))
def test_an_absent_library_is_one_sentence_with_the_command_that_installs_it(
    source: Source, libraries: Path, tmp_path: Path
) -> None:
    assert libraries.is_dir()
    error = failure(request(tmp_path, source))
    package = {"huggingface": "huggingface_hub", "modelscope": "modelscope"}[source.value]
    assert isinstance(error, Refused)
    assert str(error) == f"{sys.executable} has no {package}, the library of that hub; nothing was changed."
    assert error.next_step == f"{sys.executable} -m pip install {package}"


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("raise OSError(28, 'No space left on device')", "to has not enough room"),
        ("raise OSError(30, 'Read-only file system')", "cannot be written to"),
        ("raise ConnectionError('no route')", "the hub cannot be reached (no route)"),
        ("raise type('NotLoginException', (Exception,), {})('log in')", "the hub cannot be reached (log in)"),
        ("raise type('AuthenticationError', (Exception,), {})('log in')", "wants a login (log in)"),
        ("raise type('NotExistError', (Exception,), {})('none')", "a/b at its default branch is not there"),
        ("raise TypeError('unexpected keyword')", "takes other arguments (unexpected keyword)"),
        ("import os; os._exit(9)", "the download ended without a word (exit code 9)"),
    ],
)
def test_each_end_has_its_sentence(libraries: Path, tmp_path: Path, what: str, said: str) -> None:
    install(libraries, "modelscope", MODELSCOPE, what=what)
    error = failure(request(tmp_path, Source.MODELSCOPE))
    assert said in str(error)
    assert error.next_step


def test_the_published_checkpoint_needs_its_room_whatever_the_hub_says(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ModelScope's library tells no sizes; that of the published checkpoint is known."""
    install(libraries, "modelscope", MODELSCOPE)
    monkeypatch.setattr(reference, "CHECKPOINT_BYTES", 1 << 60)
    error = failure(request(tmp_path, Source.MODELSCOPE, repo=fetch.REPO))
    assert "to has not enough room (1152921504606846976 bytes are to be fetched, " in str(error)
    assert isinstance(error, NotFetched)


def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    error = failure(FetchRequest(tmp_path / "to", python=tmp_path / "python"))
    assert f"{tmp_path / 'python'} cannot be run (No such file or directory)" in str(error)


def test_a_signal_stops_the_library_too(libraries: Path, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    install(
        libraries,
        "modelscope",
        MODELSCOPE,
        what=f"import time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(60)",
    )
    program = (
        "import signal, sys\n"
        f"sys.path.insert(0, {str(tree.PROJECT / 'scripts')!r})\n"
        "from pathlib import Path\n"
        "from serving.download import fetch\n"
        "class Interrupted(BaseException): pass\n"
        "def interrupt(number, frame): raise Interrupted(signal.Signals(number).name)\n"
        "signal.signal(signal.SIGTERM, interrupt)\n"
        f"wanted = fetch.FetchRequest(Path({str(tmp_path / 'to')!r}), fetch.Source.MODELSCOPE, 'a/b',"
        " None, Path(sys.executable))\n"
        "try: fetch.run(wanted)\n"
        "except fetch.NotFetched as error: print(error)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    _until(lambda: pid.exists() and pid.read_text() != "")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=20)
    assert "kit fetch was interrupted by SIGTERM; every whole file is kept." in out
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def _until(done: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_program_answers_in_one_line_of_json(libraries: Path, tmp_path: Path) -> None:
    install(libraries, "modelscope", MODELSCOPE, what="print('hello')")
    order = {
        "source": "modelscope", "repo": "a/b", "revision": None, "folder": str(tmp_path / "to"), "bytes": 0,
    }  # fmt: skip
    run = subprocess.run(
        [sys.executable, fetch_program.__file__, json.dumps(order)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(run.stdout.splitlines()[-1])["kind"] == "done"
