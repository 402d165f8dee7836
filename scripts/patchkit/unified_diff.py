# SPDX-License-Identifier: Apache-2.0
"""Unified diffs of one file, read strictly and applied strictly, as bytes.

No fuzz, no offset, no merge: a hunk fits at the line it names, byte for byte, or the
whole patch does not apply. A line ends with LF; a CR before it belongs to the line,
so CRLF files and mixed ones need no special case, and neither does any encoding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_HUNK_HEADER = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(?: .*)?")
_NO_NEWLINE = b"\\ No newline at end of file"


class DiffSyntaxError(ValueError):
    """The patch text itself is damaged. ``line`` is its 1-based line number."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line} of the patch: {problem}")
        self.line = line
        self.problem = problem


class Mismatch(ValueError):
    """The patch is sound, but the text is not the one it was made from.

    ``line`` is the 1-based line of the text; ``found`` is None past its end.
    """

    def __init__(self, line: int, expected: bytes, found: bytes | None) -> None:
        super().__init__(f"line {line}: expected {expected!r}, found {found!r}")
        self.line = line
        self.expected = expected
        self.found = found


@dataclass(frozen=True)
class Hunk:
    """One hunk. Starts are 0-based line indices; lines keep their LF, where they have one."""

    old_start: int
    new_start: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]

    def reversed(self) -> Hunk:
        return Hunk(self.new_start, self.old_start, self.new, self.old)


@dataclass(frozen=True)
class UnifiedDiff:
    """The change of one file. ``path`` has no ``a/`` or ``b/`` in front."""

    path: str
    hunks: tuple[Hunk, ...]

    def reversed(self) -> UnifiedDiff:
        """The diff that undoes this one."""
        return UnifiedDiff(self.path, tuple(hunk.reversed() for hunk in self.hunks))

    def apply(self, text: bytes) -> bytes:
        """The patched text.

        Raises:
            Mismatch: the first line that is not what the patch expects.
        """
        lines = split_lines(text)
        result: list[bytes] = []
        done = 0
        for hunk in self.hunks:
            result += lines[done : hunk.old_start]
            _require(lines, hunk)
            result += hunk.new
            done = hunk.old_start + len(hunk.old)
        result += lines[done:]
        for number, line in enumerate(result[:-1], start=1):
            if not line.endswith(b"\n"):
                raise Mismatch(number, b"", line)
        return b"".join(result)


def split_lines(text: bytes) -> list[bytes]:
    """Lines with their LF; only the last may lack one. (``bytes.splitlines`` also cuts at CR.)"""
    lines = text.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def parse(patch: bytes) -> UnifiedDiff:
    """Read a patch of exactly one file; text before its ``---`` line is a description.

    Raises:
        DiffSyntaxError: anything that is not such a patch, a cut one included.
    """
    lines = patch.split(b"\n")
    if lines.pop() != b"":
        raise DiffSyntaxError(len(lines) + 1, "it ends without a newline, so it was probably cut")
    start = next((i for i, line in enumerate(lines) if line.startswith(b"--- ")), None)
    if start is None:
        raise DiffSyntaxError(max(len(lines), 1), "no '--- a/...' line")
    if start + 1 >= len(lines) or not lines[start + 1].startswith(b"+++ "):
        raise DiffSyntaxError(start + 2, "expected a '+++ b/...' line")
    path = _path(lines[start], b"--- a/", start + 1)
    if _path(lines[start + 1], b"+++ b/", start + 2) != path:
        raise DiffSyntaxError(start + 2, "the two paths differ")
    hunks = tuple(_hunks(lines, start + 2))
    if not hunks:
        raise DiffSyntaxError(len(lines), "no hunk")
    return UnifiedDiff(path, hunks)


def _path(line: bytes, prefix: bytes, number: int) -> str:
    if not line.startswith(prefix):
        raise DiffSyntaxError(number, f"expected {prefix.decode()!r} in front of the path")
    return line[len(prefix) :].split(b"\t")[0].decode("utf-8", "surrogateescape")


def _hunks(lines: list[bytes], at: int) -> Iterator[Hunk]:
    old_done = new_done = 0
    while at < len(lines):
        header = _HUNK_HEADER.fullmatch(lines[at])
        if header is None:
            raise DiffSyntaxError(at + 1, "expected a hunk header '@@ -l,n +l,n @@'")
        old_count, new_count = (int(n) if n is not None else 1 for n in header.group(2, 4))
        old, new, end = _hunk_body(lines, at + 1, old_count, new_count)
        # An empty side names the line before it; any other names its first line.
        old_start = int(header[1]) - (1 if old_count else 0)
        new_start = int(header[3]) - (1 if new_count else 0)
        if old_start < old_done or old_start - old_done != new_start - new_done:
            raise DiffSyntaxError(at + 1, "the hunk does not follow from the ones before it")
        yield Hunk(old_start, new_start, tuple(old), tuple(new))
        old_done, new_done = old_start + old_count, new_start + new_count
        at = end


def _hunk_body(
    lines: list[bytes], at: int, old_count: int, new_count: int
) -> tuple[list[bytes], list[bytes], int]:
    """Both sides of a hunk, and the index of the line after it."""
    old: list[bytes] = []
    new: list[bytes] = []
    sides: tuple[list[bytes], ...] = ()
    while len(old) < old_count or len(new) < new_count or _is_no_newline(lines, at):
        if at >= len(lines):
            raise DiffSyntaxError(at + 1, "the hunk ends too early, so the patch was probably cut")
        mark, rest = lines[at][:1], lines[at][1:]
        if mark == b"\\":
            if lines[at] != _NO_NEWLINE or not sides or not sides[0][-1].endswith(b"\n"):
                raise DiffSyntaxError(at + 1, "a '\\' line where none can stand")
            for side in sides:
                side[-1] = side[-1][:-1]
        else:
            sides = _sides(mark, old, new, at + 1)
            for side in sides:
                if side and not side[-1].endswith(b"\n"):
                    raise DiffSyntaxError(at + 1, "a line after the one without a newline")
                side.append(rest + b"\n")
        if len(old) > old_count or len(new) > new_count:
            raise DiffSyntaxError(at + 1, "the hunk is longer than its header says")
        at += 1
    return old, new, at


def _is_no_newline(lines: list[bytes], at: int) -> bool:
    return at < len(lines) and lines[at].startswith(b"\\")


def _sides(mark: bytes, old: list[bytes], new: list[bytes], number: int) -> tuple[list[bytes], ...]:
    match mark:
        case b" ":
            return (old, new)
        case b"-":
            return (old,)
        case b"+":
            return (new,)
    raise DiffSyntaxError(number, "expected a line that starts with ' ', '+', '-' or '\\'")


def _require(lines: list[bytes], hunk: Hunk) -> None:
    for offset, expected in enumerate(hunk.old):
        at = hunk.old_start + offset
        found = lines[at] if at < len(lines) else None
        if found != expected:
            raise Mismatch(at + 1, expected, found)
    if hunk.old_start > len(lines):
        raise Mismatch(len(lines) + 1, b"", None)
