# SPDX-License-Identifier: Apache-2.0
"""What every verb is given, and what it gives back."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchkit.errors import ExitCode

if TYPE_CHECKING:
    from patchkit.manifest import Folder
    from patchkit.release import Catalogue, Release
    from patchkit.target import Target
    from serving.typed import Typed

VERSION = "0.1.0"


@dataclass(frozen=True)
class Answer:
    """What a verb found or did: text for a person, data for a program."""

    text: str
    data: dict[str, Any]
    exit_code: ExitCode = ExitCode.OK
    next_step: str = ""
    raw: bytes = b""
    """Bytes to write in front of the text, where a person did not ask for data (``diff``)."""


@dataclass(frozen=True)
class Request:
    """A verb's view of the command line. ``kit`` is what the user types for this program.

    The release and the target are looked up when a verb asks for them: some need neither.
    """

    options: argparse.Namespace
    kit: str

    @cached_property
    def catalogue(self) -> Catalogue:
        from patchkit.release import Catalogue

        return Catalogue(bundle())

    @cached_property
    def target(self) -> Target:
        from patchkit import target

        packages = self.catalogue.first.packages  # of every release the same, by their import names
        if self.options.root:
            return target.in_folder(packages, self.options.root)
        return target.of_interpreter(packages, self.options.python)

    @cached_property
    def release(self) -> Release:
        """The one that the target is of. Nobody types it."""
        from patchkit import recognition

        return recognition.release_of(self.catalogue, self.target)

    @cached_property
    def typed(self) -> Typed:
        """How this user types the kit's commands, in what is said of a finding."""
        from serving.typed import Typed

        names = target_options(self.options) if hasattr(self.options, "root") else []
        return Typed(self.kit, " ".join(names))

    def command(self, verb: str, *arguments: str) -> str:
        """The kit's command for another verb on the same target."""
        return " ".join([self.kit, verb, *arguments, *target_options(self.options)])


@dataclass(frozen=True)
class Verb:
    """One subcommand: its line in the help, its own options, what it does."""

    summary: str
    run: Callable[[Request], Answer]
    add_options: tuple[Callable[[argparse.ArgumentParser], None], ...] = ()


def bundle() -> Folder:
    """The kit's own files: the checkout around this module, or the archive that it is in."""
    archive = getattr(__spec__.loader if __spec__ else None, "archive", None)
    if archive is None:
        return Path(__file__).resolve().parent.parent.parent
    import zipfile  # a tenth of the start-up time, and only the archive needs it

    return zipfile.Path(archive)


def _interpreter(text: str) -> Path:
    """A path as the user's shell would take it: with a slash from here, without one from PATH."""
    import os
    import shutil

    return Path(os.path.abspath(text) if "/" in text else shutil.which(text) or text)  # noqa: PTH100


def target_arguments(verb: argparse.ArgumentParser) -> None:
    where = verb.add_mutually_exclusive_group()
    where.add_argument(
        "--python",
        type=_interpreter,
        metavar="PATH",
        help="the interpreter whose packages are meant (default: that of the vllm command, or python3)",
    )
    where.add_argument(
        "--root", type=Path, metavar="DIR", help="a folder that holds vllm/ and vllm_ascend/, instead"
    )


def target_options(options: argparse.Namespace) -> list[str]:
    if options.root:
        return ["--root", shlex.quote(str(options.root))]
    return ["--python", shlex.quote(str(options.python))] if options.python else []


def paragraphs(parts: Sequence[str]) -> str:
    return "\n\n".join(part for part in parts if part)
