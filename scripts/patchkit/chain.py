# SPDX-License-Identifier: Apache-2.0
"""The few contents that one file may have, one standing on the other, and the way between them.

A file's chain is short: as published, with the base, with at most one opt-in set. Its
state is the rung whose hash it has. This is the one place that knows which set stands
on which, and the hash of each step proves the next.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import PurePosixPath

from .errors import Refused
from .manifest import BASE, TargetFile, sha256
from .unified_diff import Mismatch

PRISTINE = 0
"""The rung of a file as upstream published it; each edit is one rung higher."""


@dataclass(frozen=True)
class Chain:
    """One file, and what the sets make of it, each edit on the one before it."""

    path: PurePosixPath
    edits: tuple[TargetFile, ...]

    @property
    def rungs(self) -> range:
        return range(len(self.edits) + 1)

    def digest(self, rung: int) -> str | None:
        """The sha256 of the file on a rung, None where there is no file."""
        return self.edits[0].before if rung == PRISTINE else self.edits[rung - 1].after

    def rung_of(self, text: bytes | None) -> int | None:
        """The rung of a content, by its hash alone, or None for one that is on none."""
        found = None if text is None else sha256(text)
        return next((rung for rung in self.rungs if self.digest(rung) == found), None)

    def word(self, rung: int) -> str:
        """What the file on a rung is called."""
        if rung == PRISTINE:
            return "pristine"
        owner = self.edits[rung - 1].owner
        return "applied" if owner == BASE else f"applied {owner}"

    def rung_of_edit(self, edit: TargetFile) -> int:
        """The rung that an edit leads to."""
        return self.edits.index(edit) + 1

    def height(self, sets: Collection[str]) -> int:
        """The rung of the file where these sets are there, with all that they stand on."""
        return sum(edit.owner in sets for edit in self.edits)

    def text_on(self, goal: int, text: bytes | None, rung: int) -> bytes | None:
        """The content on the rung ``goal``, made from ``text``, which is on ``rung``.

        Raises:
            Refused: a diff does not lead to the hash that its manifest names.
        """
        while rung != goal:
            step = 1 if rung < goal else -1
            text = _stepped(self.edits[min(rung, rung + step)], text, step)
            rung += step
            self._require(text, rung)
        return text

    def _require(self, text: bytes | None, rung: int) -> None:
        found, expected = None if text is None else sha256(text), self.digest(rung)
        if found != expected:
            raise Refused(
                f"the patch of {self.path} leads to sha256 {short(found)}, "
                f"the manifest says {short(expected)}, so the kit itself is damaged",
                "copy the kit again from where you have it",
            )


def _stepped(edit: TargetFile, text: bytes | None, step: int) -> bytes | None:
    if edit.diff is None:
        return edit.new_text if step > 0 else None
    diff = edit.diff if step > 0 else edit.diff.reversed()
    try:
        return diff.apply(text or b"")
    except Mismatch as mismatch:
        raise Refused(
            f"the patch of {edit.path} does not fit its own pre-image at line {mismatch.line}, "
            "so the kit itself is damaged",
            "copy the kit again from where you have it",
        ) from mismatch


def short(digest: str | None) -> str:
    """The 12 hex digits of a hash that messages show; "absent" for no file."""
    return "absent" if digest is None else digest[:12]
