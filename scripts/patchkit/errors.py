# SPDX-License-Identifier: Apache-2.0
"""What the engine says when it will not, or could not, do what was asked.

Each error is one sentence of what and where, what is on the disk now, and the one
command to type next. The rim (``cli``) prints it and exits with its code.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of ``kit``, which its help lists."""

    OK = 0
    """Done, or already so."""
    NO = 1
    """The answer is no: not wholly applied, a problem found, does not fit, not known."""
    USAGE = 2
    """The command line was not understood (argparse's own code)."""
    REFUSED = 3
    """Refused before the first write: nothing was changed."""
    PUT_BACK = 4
    """Failed on the way, and every file is again as it was."""
    NOT_PUT_BACK = 5
    """Failed on the way, and at least one file could not be put back."""
    UNWRITTEN = 6
    """Done, or already so, but the answer could not be written."""


class KitError(Exception):
    """An expected failure. ``next_step`` is the one command or action that helps.

    In it, ``{kit}`` stands for the kit as it was called and ``{again}`` for the whole
    command line; only the rim knows them.
    """

    exit_code = ExitCode.REFUSED
    outcome = "nothing was changed"

    def __init__(self, what: str, next_step: str) -> None:
        super().__init__(what)
        self.what = what
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.what}; {self.outcome}."


class Refused(KitError):
    """Something that can be known before the first write does not fit."""


class BundleDamaged(Refused):
    """The kit's own files (manifest, patch, overlay) are absent, cut or altered."""


class TargetNotFound(Refused):
    """No importable vLLM or vllm-ascend, or one that must not be written to."""


class PutBack(KitError):
    """A step failed or the run was interrupted; what was replaced is back."""

    exit_code = ExitCode.PUT_BACK
    outcome = "every file is as it was before"


class NotPutBack(KitError):
    """A step failed, and so did undoing an earlier one: the files are mixed."""

    exit_code = ExitCode.NOT_PUT_BACK

    def __init__(self, what: str, next_step: str, left_changed: tuple[str, ...]) -> None:
        super().__init__(what, next_step)
        self.left_changed = left_changed

    @property
    def outcome(self) -> str:  # type: ignore[override]
        return f"each file is whole, but {', '.join(self.left_changed)} could not be put back"
