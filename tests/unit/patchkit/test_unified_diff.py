# SPDX-License-Identifier: Apache-2.0
"""The applier against git, and against damaged patches."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from patchkit import unified_diff
from patchkit.unified_diff import DiffSyntaxError, Mismatch

# Few distinct lines, so that diffs have context, repeats and moves; CR, NUL, bytes that
# are no UTF-8, and texts that look like diff syntax themselves.
LINES = st.sampled_from(
    [
        b"a",
        b"b",
        b"c",
        b"",
        b"a\r",
        b"\r",
        b"\xff\xfe",
        b"caf\xe9",
        b"-- a",
        b"++ b",
        b"@@ -1 +1 @@",
        b"\\ x",
        b"\x0c",
    ]
)


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    lines = draw(st.lists(LINES, max_size=30))
    final_newline = draw(st.booleans())
    return b"\n".join(lines) + (b"\n" if final_newline and lines else b"")


@st.composite
def edits(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A text and a changed copy of it, or two unrelated texts."""
    before = draw(texts())
    if draw(st.booleans()):
        return before, draw(texts())
    lines = before.split(b"\n")
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines)))
        lines[at : at + draw(st.integers(0, 2))] = draw(st.lists(LINES, max_size=2))
    return before, b"\n".join(lines)


def sealed_git(folder: Path, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Git that reads no configuration, belongs to no repository and converts nothing."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CEILING_DIRECTORIES": str(folder.parent),
    }
    return subprocess.run(
        ["git", "-c", "core.autocrlf=false", *arguments],
        cwd=folder,
        env=env,
        input=stdin,
        capture_output=True,
    )


def git_diff(folder: Path, before: bytes, after: bytes, context: int) -> bytes:
    (folder / "old").write_bytes(before)
    (folder / "new").write_bytes(after)
    done = sealed_git(folder, "diff", "--no-index", "--text", "--no-renames", f"-U{context}", "old", "new")
    assert done.returncode in (0, 1), done.stderr
    body = done.stdout[done.stdout.index(b"\n--- ") + 1 :]
    return body.replace(b"--- a/old", b"--- a/f", 1).replace(b"+++ b/new", b"+++ b/f", 1)


def git_apply(folder: Path, text: bytes, patch: bytes, *options: str) -> bytes:
    (folder / "f").write_bytes(text)
    done = sealed_git(folder, "apply", "--unidiff-zero", "--whitespace=nowarn", *options, stdin=patch)
    assert done.returncode == 0, (done.stderr, patch)
    return (folder / "f").read_bytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("git")


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(edit=edits(), context=st.integers(0, 4))
@example(edit=(b"a\r\nb\r\n", b"a\r\nc\r\n"), context=3)
@example(edit=(b"a\nb", b"a\nb\n"), context=3)
@example(edit=(b"a\nb\n", b"a\nb"), context=0)
@example(edit=(b"a\n", b"a\na"), context=0)
@example(edit=(b"", b"a"), context=3)
@example(edit=(b"\xff\r", b"\xff\n"), context=3)
def test_forward_and_back_as_git_does(folder: Path, edit: tuple[bytes, bytes], context: int) -> None:
    before, after = edit
    assume(before != after)
    patch = git_diff(folder, before, after, context)

    diff = unified_diff.parse(patch)

    assert diff.apply(before) == after
    assert diff.reversed().apply(after) == before
    # Git takes an empty side for a file to create or delete, and is no oracle without context:
    # it undoes b"a\n" -> b"a\na" to b"a", which is not where it came from.
    if before and after and context:
        assert git_apply(folder, before, patch) == after
        assert git_apply(folder, after, patch, "--reverse") == before


@settings(max_examples=300, deadline=None)
@given(edit=edits(), other=texts())
def test_a_text_it_was_not_made_from_is_refused_or_gives_what_git_gives_at_those_lines(
    folder: Path, edit: tuple[bytes, bytes], other: bytes
) -> None:
    before, after = edit
    assume(before != after)
    diff = unified_diff.parse(git_diff(folder, before, after, 3))
    old_lines = unified_diff.split_lines(other)
    try:
        diff.apply(other)
    except Mismatch:
        return
    for hunk in diff.hunks:
        assert tuple(old_lines[hunk.old_start : hunk.old_start + len(hunk.old)]) == hunk.old


@settings(max_examples=300, deadline=None)
@given(edit=edits(), data=st.data())
def test_a_cut_or_overwritten_patch_never_ends_in_anything_but_its_own_errors(
    folder: Path, edit: tuple[bytes, bytes], data: st.DataObject
) -> None:
    before, after = edit
    assume(before != after)
    patch = git_diff(folder, before, after, 3)
    at = data.draw(st.integers(0, len(patch)))
    damaged = data.draw(
        st.sampled_from([patch[:at], patch[:at] + b"?" + patch[at + 1 :], patch[:at] + patch[at + 1 :]])
    )
    with contextlib.suppress(DiffSyntaxError, Mismatch):
        unified_diff.parse(damaged).apply(before)


PATCH = b"--- a/f\n+++ b/f\n@@ -1,3 +1,4 @@\n one\n-two\n+2\n+2.5\n three\n"


def test_the_description_before_the_first_line_is_left_out() -> None:
    assert (
        unified_diff.parse(b"Description: why\n and how\n" + PATCH).apply(b"one\ntwo\nthree\n")
        == b"one\n2\n2.5\nthree\n"
    )


def test_no_offset_a_hunk_that_fits_one_line_lower_is_refused() -> None:
    with pytest.raises(Mismatch) as caught:
        unified_diff.parse(PATCH).apply(b"zero\none\ntwo\nthree\n")
    assert (caught.value.line, caught.value.expected, caught.value.found) == (1, b"one\n", b"zero\n")


def test_no_fuzz_a_differing_context_line_is_refused() -> None:
    with pytest.raises(Mismatch) as caught:
        unified_diff.parse(PATCH).apply(b"one\ntwo\nthree \n")
    assert caught.value.line == 3


def test_an_lf_patch_does_not_fit_a_crlf_text() -> None:
    with pytest.raises(Mismatch):
        unified_diff.parse(PATCH).apply(b"one\r\ntwo\r\nthree\r\n")


def test_a_text_that_ends_too_early_is_refused() -> None:
    with pytest.raises(Mismatch) as caught:
        unified_diff.parse(PATCH).apply(b"one\n")
    assert (caught.value.line, caught.value.found) == (2, None)


@pytest.mark.parametrize(
    ("patch", "line", "problem"),
    [
        (b"", 1, "no '--- a/...' line"),
        (b"only a description\n", 1, "no '--- a/...' line"),
        (b"--- a/f\n", 2, "+++"),
        (b"--- a/f\n+++ b/g\n@@ -1 +1 @@\n-a\n+b\n", 2, "differ"),
        (b"--- f\n+++ f\n@@ -1 +1 @@\n-a\n+b\n", 1, "in front of the path"),
        (b"--- a/f\n+++ b/f\n", 2, "no hunk"),
        (b"--- a/f\n+++ b/f\n@@ nonsense @@\n", 3, "hunk header"),
        (PATCH[:-1], 8, "cut"),
        (PATCH[: -len(b" three\n")], 8, "too early"),
        (PATCH + b" four\n", 9, "hunk header"),
        (PATCH + b"--- a/g\n+++ b/g\n@@ -1 +1 @@\n-a\n+b\n", 9, "hunk header"),
        (PATCH.replace(b"+2.5", b"*2.5"), 7, "expected a line that starts"),
        (PATCH.replace(b"-1,3", b"-1,2"), 8, "longer"),
        (PATCH.replace(b"+1,4", b"+2,4"), 3, "does not follow"),
        (b"--- a/f\n+++ b/f\n@@ -1 +1 @@\n\\ No newline at end of file\n-a\n+b\n", 4, "none can stand"),
        (
            b"--- a/f\n+++ b/f\n@@ -1,2 +1 @@\n-a\n\\ No newline at end of file\n-b\n+b\n",
            6,
            "without a newline",
        ),
    ],
)
def test_a_damaged_patch_is_refused_by_line(patch: bytes, line: int, problem: str) -> None:
    with pytest.raises(
        DiffSyntaxError, match=problem.replace("+", r"\+").replace("...", r"\.\.\.")
    ) as caught:
        unified_diff.parse(patch)
    assert caught.value.line == line
