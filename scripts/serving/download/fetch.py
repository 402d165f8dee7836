# SPDX-License-Identifier: Apache-2.0
"""``kit fetch``: the checkpoint from a hub into a folder, and a look at whether it came whole.

The hub's own library does the work, run by the Python that has it: the one of the vllm command.
"""

from __future__ import annotations

import json
import os
import pkgutil
import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from patchkit.errors import BundleDamaged, ExitCode, KitError, Refused
from patchkit.target import default_interpreter
from serving import foreground
from serving.machine import reference
from serving.model import checkpoint
from serving.typed import PLAIN, Typed

REPO = "stepfun-ai/Step-3.7-Flash"
_PROGRAM = "fetch_program.py"
_COMMIT = re.compile(r"[0-9a-f]{40}")


class Source(Enum):
    """A hub. Its value is what the user types."""

    HUGGINGFACE = "huggingface"
    MODELSCOPE = "modelscope"


@dataclass(frozen=True)
class FetchRequest:
    """``revision`` is a branch, a tag or a commit; None for the hub's default branch."""

    folder: Path
    source: Source = Source.HUGGINGFACE
    repo: str = REPO
    revision: str | None = None
    python: Path | None = None


@dataclass(frozen=True)
class Fetched:
    """``revision`` is what was taken: a commit, or with ModelScope what was asked for."""

    request: FetchRequest
    revision: str
    library: str
    report: checkpoint.Report

    @property
    def is_pinned(self) -> bool:
        """The same command gives the same files tomorrow."""
        return bool(self.request.revision and _COMMIT.fullmatch(self.request.revision))


class NotFetched(KitError):
    """It ended on the way. The same command fetches what is missing."""

    exit_code = ExitCode.PUT_BACK
    outcome = "every whole file is kept"


_STOPPED_BEFORE = frozenset(
    {"no-library", "offline-mode", "no-access", "no-revision", "no-repo", "not-there", "arguments", "busy"}
)
"""Known before the first file was touched."""


def run(request: FetchRequest) -> Fetched:
    """Fetch, or go on with a fetch that was interrupted, then check the folder.

    Raises:
        Refused: no library, no such repository or revision, no access.
        NotFetched: the hub went away, the disk is full, a signal came.
    """
    python = request.python or default_interpreter()
    answer = _answer(python, request)
    if answer["kind"] != "done":
        raise _failure(answer["kind"], answer, request, python)
    return Fetched(request, answer["revision"], answer["library"], checkpoint.check(request.folder))


def _answer(python: Path, request: FetchRequest) -> Mapping[str, str]:
    program = pkgutil.get_data(__package__, _PROGRAM)
    if program is None:
        raise BundleDamaged(f"the kit's own file serving/download/{_PROGRAM} is absent", "copy the kit again")
    order = {
        "source": request.source.value,
        "repo": request.repo,
        "revision": request.revision,
        "folder": str(request.folder.absolute()),
        "bytes": reference.CHECKPOINT_BYTES if request.repo == REPO else 0,
    }
    command = (python, "-P", "-B", "-c", program.decode("utf-8"), json.dumps(order))
    try:
        # The program shows its progress on our stderr; its stdout is a line or a few.
        with foreground.running(command, os.environ, Path.cwd(), subprocess.PIPE) as process:
            text, _ = process.communicate()
    except OSError as error:
        what = f"{python} cannot be run ({error.strerror})"
        raise Refused(what, "name a Python that has the hub's library: {again} --python PATH") from None
    except Exception:
        raise
    except BaseException as interruption:
        # Whatever the rim raises for a signal.
        what = f"kit fetch was interrupted by {interruption or type(interruption).__name__}"
        raise NotFetched(what, "to go on from there: {again}") from None
    return _parsed(text, process.returncode)


def _parsed(text: bytes, exit_code: int) -> Mapping[str, str]:
    """The program's last line; a program that was killed left none."""
    try:
        found = json.loads(text.decode("utf-8", "replace").strip().splitlines()[-1])
        return {name: str(found[name]) for name in ("kind", "revision", "text", "library")}
    except (ValueError, IndexError, KeyError, TypeError):
        what = f"the download ended without a word (exit code {exit_code})"
        raise NotFetched(what, "to go on from there: {again}") from None


def _failure(kind: str, answer: Mapping[str, str], request: FetchRequest, python: Path) -> KitError:
    """The sentence and the way out of each kind of end."""
    library, said, repo = answer["library"], answer["text"], f"{request.source.value}'s {request.repo}"
    revision = request.revision or "its default branch"
    package = library.split()[0]
    other = next(source.value for source in Source if source is not request.source)
    mirror = "HF_ENDPOINT to a mirror, or " if request.source is Source.HUGGINGFACE else ""
    elsewhere = f"set {mirror}HTTPS_PROXY to your proxy, or take the other hub: {{again}} --source {other}"
    known = {
        "no-library": (
            f"{python} has no {package}, the library of that hub",
            f"{python} -m pip install {package}",
        ),
        "offline-mode": (f"{library} is told to stay offline ({said})", "unset HF_HUB_OFFLINE; {again}"),
        "no-access": (
            f"{repo} wants a login ({said})",
            "set HF_TOKEN or log in with the hub's tool; {again}",
        ),
        "no-revision": (f"{repo} has no revision {revision}", "leave --revision away, or name one it has"),
        "no-repo": (
            f"{repo} is not there, or not for you ({said})",
            f"look at the name, or: --source {other}",
        ),
        "not-there": (
            f"{repo} at {revision} is not there ({said})",
            f"look at both names, or: --source {other}",
        ),
        "arguments": (f"{library} takes other arguments ({said})", f"{python} -m pip install -U {package}"),
        "busy": (
            f"another kit fetch is at work in {request.folder}",
            "wait for it, or name another: --to DIR",
        ),
        "no-room": (f"{request.folder} has not enough room ({said})", "make room, or name another: --to DIR"),
        "not-writable": (f"{request.folder} cannot be written to ({said})", "name another: --to DIR"),
        "http": (f"the hub failed ({said})", "wait a little, then go on from there: {again}"),
        "unreachable": (f"the hub cannot be reached ({said})", elsewhere),
    }
    what, next_step = known.get(kind, known["unreachable"])
    return Refused(what, next_step) if kind in _STOPPED_BEFORE else NotFetched(what, next_step)


# --- for a person, for a program --------------------------------------------------


def text(fetched: Fetched, typed: Typed = PLAIN) -> str:
    request = fetched.request
    lines = [
        f"fetched: {request.source.value}'s {request.repo} at {fetched.revision} into {request.folder}"
        f" (by {fetched.library})"
    ]
    if not fetched.is_pinned and _COMMIT.fullmatch(fetched.revision):
        lines.append(f"to fetch the same again, on another machine too: --revision {fetched.revision}")
    if not _COMMIT.fullmatch(fetched.revision):
        lines.append(f"{fetched.revision} may move: ModelScope's library does not tell the commit behind it.")
    return "\n".join(lines) + "\n\n" + checkpoint.text(fetched.report, typed)


def next_step(fetched: Fetched) -> str:
    """The kit's command to type after a fetch that went well."""
    return f"{{kit}} plan {shlex.quote(str(fetched.request.folder))}"


def as_json(fetched: Fetched, typed: Typed = PLAIN) -> dict[str, Any]:
    return {
        "source": fetched.request.source.value,
        "repo": fetched.request.repo,
        "revision": fetched.revision,
        "pinned": fetched.is_pinned,
        "library": fetched.library,
        "check": checkpoint.as_json(fetched.report, typed),
    }
