# SPDX-License-Identifier: Apache-2.0
"""Why a file has no known content, as far as its text tells: one clause each."""

from __future__ import annotations

from .manifest import LineEnds, TargetFile
from .release import Release
from .state import FileStatus
from .unified_diff import Mismatch, UnifiedDiff


def explain(status: FileStatus, release: Release) -> str:
    """About a drifted or missing file: line ends, another release, an edit by hand, the first odd line."""
    file, text, chain = status.file, status.text, status.on_disk.chain
    if status.on_disk.trouble is not None:
        return status.on_disk.trouble.what
    if text is None:
        return "the file is absent"
    if (rung := chain.rung_of(file.line_ends.normalise(text))) is not None:
        found = "LF" if file.line_ends is LineEnds.CRLF else "CRLF"
        return f"the same text as the {chain.word(rung)} file, with other line ends ({found})"
    for other in release.others:
        theirs = other.chain(chain.path)
        if theirs is not None and (rung := theirs.rung_of(text)) is not None:
            return f"it is the {theirs.word(rung)} file of {other.id}"
    return _against_diff(file, text)


def _against_diff(file: TargetFile, text: bytes) -> str:
    if file.diff is None:
        return "another file of that name, not the kit's"
    try:
        file.diff.apply(text)
    except Mismatch as mismatch:
        if mismatch.found in _added_lines(file.diff):
            return f"edited by hand: line {mismatch.line} is already as the patch makes it"
        return f"line {mismatch.line}: expected {_show(mismatch.expected)}, found {_show(mismatch.found)}"
    return "the lines around the edits are as expected, the difference lies elsewhere"


def _added_lines(diff: UnifiedDiff) -> set[bytes]:
    return {line for hunk in diff.hunks for line in hunk.new if line not in hunk.old}


def _show(line: bytes | None) -> str:
    if line is None:
        return "the end of the file"
    text = line.decode("utf-8", "replace").rstrip("\r\n").strip()
    return repr(text if len(text) <= 60 else text[:57] + "...")
