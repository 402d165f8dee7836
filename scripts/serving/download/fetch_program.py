# SPDX-License-Identifier: Apache-2.0
"""Run by a Python that has the hub's library: fetch a repository into a folder, say how that went.

Its one argument is a JSON object: source, repo, revision, folder, bytes. What the library shows
goes to stderr; the last line on stdout is the answer, a JSON object with a ``kind``.

The commit is asked for before anything else. Without that huggingface_hub, if it cannot reach the
hub, takes a folder with half a download in it for the answer and returns without an error.
"""

import contextlib
import errno
import fcntl
import importlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = {"huggingface": "huggingface_hub", "modelscope": "modelscope"}
WORKERS = 8

KINDS = (
    ("Busy", "busy"),
    ("OfflineModeIsEnabled", "offline-mode"),
    ("GatedRepoError", "no-access"),
    ("AuthenticationError", "no-access"),
    ("PermissionDeniedError", "no-access"),
    ("RevisionNotFoundError", "no-revision"),
    ("NoValidRevisionError", "no-revision"),
    ("RepositoryNotFoundError", "no-repo"),
    ("HFValidationError", "no-repo"),
    ("NotExistError", "not-there"),
    ("InvalidParameter", "not-there"),
    ("TypeError", "arguments"),
    ("HfHubHTTPError", "http"),
    ("HTTPStatusError", "http"),
    ("APIError", "http"),
)
"""Names of exception classes, the first that fits. By name: which module has them differs by version."""


LOCK = os.path.join(".cache", "kit-fetch.lock")
LEFTOVER = re.compile(r"\.[0-9a-f]{8}\.incomplete$")
"""A file under way of a fetch that was killed. From some version on huggingface_hub gives each run's
files names of their own and never goes on with another's; its older names have no such part."""


class Busy(Exception):
    """Another run of this program is at work in the folder."""


@contextlib.contextmanager
def sole_use(folder: str) -> Iterator[None]:
    """The folder for one run, without what a killed one left in it."""
    lock = Path(folder, LOCK)
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(folder) from None
        for path in Path(folder, ".cache", "huggingface").rglob("*.incomplete"):
            if LEFTOVER.search(path.name):
                path.unlink(missing_ok=True)
        yield


class NoRoom(Exception):
    """Bytes to fetch, and free."""

    def __init__(self, needed: int, free: int) -> None:
        super().__init__(f"{needed} bytes are to be fetched, {free} are free")


def require_room(folder: str, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise NoRoom(needed, free)


def bytes_in(folder: str) -> int:
    """What is there already, unfinished files included, as the disk counts it."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total


def huggingface(order: dict[str, Any]) -> str:
    """The commit that was taken, 40 hex digits."""
    hub = importlib.import_module(PACKAGES["huggingface"])
    info = hub.HfApi().model_info(order["repo"], revision=order["revision"], files_metadata=True)
    total = sum(file.size or 0 for file in info.siblings or ())
    with sole_use(order["folder"]):
        require_room(order["folder"], total - bytes_in(order["folder"]))
        print(f"commit {info.sha}, {total} bytes", file=sys.stderr)
        hub.snapshot_download(
            order["repo"], revision=info.sha, local_dir=order["folder"], max_workers=WORKERS
        )
    return str(info.sha)


def modelscope(order: dict[str, Any]) -> str:
    """The branch or tag; the library does not tell the commit behind one."""
    hub = importlib.import_module(PACKAGES["modelscope"])
    revision = order["revision"] or "master"
    with sole_use(order["folder"]):
        require_room(order["folder"], order["bytes"] - bytes_in(order["folder"]))
        hub.snapshot_download(
            order["repo"], revision=revision, local_dir=order["folder"], max_workers=WORKERS
        )
    return str(revision)


def kind_of(error: BaseException) -> str:
    causes = chain(error)
    if any(isinstance(cause, NoRoom) or getattr(cause, "errno", 0) == errno.ENOSPC for cause in causes):
        return "no-room"
    if any(getattr(cause, "errno", 0) in (errno.EACCES, errno.EROFS, errno.EPERM) for cause in causes):
        return "not-writable"
    if isinstance(error, ModuleNotFoundError):
        return "no-library"
    names = [name for cause in causes for name in (base.__name__ for base in type(cause).__mro__)]
    return next((kind for name, kind in KINDS if name in names), "unreachable")


def chain(error: BaseException) -> list[BaseException]:
    """The error and what led to it."""
    found = [error]
    while (cause := found[-1].__cause__ or found[-1].__context__) and cause not in found:
        found.append(cause)
    return found


def sentence(error: BaseException) -> str:
    """The first line of the innermost error that says anything."""
    texts = [str(cause).strip() for cause in chain(error)]
    text = next((text for text in reversed(texts) if text), type(error).__name__)
    return text.splitlines()[0][:300]


def answer(order: dict[str, Any]) -> dict[str, Any]:
    package = PACKAGES[order["source"]]
    try:
        revision = {"huggingface": huggingface, "modelscope": modelscope}[order["source"]](order)
        found = {"kind": "done", "revision": revision, "text": ""}
    except Exception as error:
        found = {"kind": kind_of(error), "revision": "", "text": sentence(error)}
    try:
        return found | {"library": f"{package} {version(package)}"}
    except PackageNotFoundError:
        return found | {"library": package}


if __name__ == "__main__":
    print("\n" + json.dumps(answer(json.loads(sys.argv[1]))))
