# SPDX-License-Identifier: Apache-2.0
"""The look at a file's names: what would raise NameError is found, what would not is left alone."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import subprocess
import tarfile
import typing
from asyncio import base_events
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tree
from patchkit import names

FINE = '''
"""A module that uses every way to bind a name."""
from __future__ import annotations
import os.path, json as j
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from collections.abc import Iterable
LIMIT: float = 7.0
try:
    import numpy
except ImportError as missing:
    numpy = missing
with open(__file__) as handle, open(os.devnull) as (first):
    pass
for index, (left, *rest) in enumerate([]):
    print(index, left, rest)
def outer(a, /, b=LIMIT, *args, key=None, **options):
    global made_later
    made_later = [x for x in args if (y := x)]
    def inner():
        nonlocal a
        a = b
        return a, key, options, made_later
    return inner, lambda z: z + a, {k: v for k, v in options.items()}
class Shape(dict):
    side = 2
    area = side * side
    names: Iterable[str]
    def size(self): return __class__, super().keys(), self.side, Shape.area
    __slots__ = ("x",)
print(made_later, handle, first, j.dumps, __name__, __doc__, __spec__, reveal := 1, reveal)
match LIMIT:
    case {"a": inner_name, **others}:
        print(inner_name, others)
del LIMIT
async def later():
    async for item in outer():
        yield item
'''


def test_every_way_to_bind_a_name_is_known() -> None:
    assert names.problems(FINE.encode(), "fine.py") == ()


@pytest.mark.parametrize(
    ("source", "line", "text"),
    [
        ("def f(x):\n    return x * limit\n", 2, "the name 'limit' is not defined"),
        ("def f(x):\n    return lambda: [limit for _ in x]\n", 2, "the name 'limit' is not defined"),
        (
            "class A:\n    limit = 1\n    def f(self):\n        return limit\n",
            4,
            "the name 'limit' is not defined",
        ),
        ("class A(Base):\n    pass\n", 1, "the name 'Base' is not defined"),
        ("def f(x: int = limit): ...\n", 1, "the name 'limit' is not defined"),
        ("print(limit)\n", 1, "the name 'limit' is not defined"),
        ("def f():\n    limit = 1\ndef g():\n    return limit\n", 4, "the name 'limit' is not defined"),
        ("@wrapped\ndef f(): ...\n", 1, "the name 'wrapped' is not defined"),
        ("def f(:\n    pass\n", 1, "SyntaxError"),
        ("x = 1\n    y = 2\n", 2, "IndentationError"),
        ("return 1\n", 1, "SyntaxError: 'return' outside function"),
        ("x = '\x00'\n", None, "null bytes"),
    ],
)
def test_what_would_fail_is_found_by_line(source: str, line: int | None, text: str) -> None:
    [problem] = names.problems(source.encode(), "bad.py")
    assert text in problem.text
    assert problem.line == line


def test_crlf_text_is_looked_at_like_any_other() -> None:
    [problem] = names.problems(b"def f(x):\r\n    return limit\r\n", "crlf.py")
    assert problem.line == 2


def test_bytes_that_are_no_source_are_a_problem_not_a_crash() -> None:
    assert names.problems(b"\xff\xfe\x00", "binary.py")
    assert names.problems(b"# -*- coding: no-such-codec -*-\n", "codec.py")
    assert names.problems(b"(" * 10_000, "deep.py")
    assert names.problems(b"#\x80", "comment.py")


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_told_not_crashed_on(source: bytes) -> None:
    names.problems(source, "anything.py")


def test_a_star_import_leaves_the_names_undecided() -> None:
    assert names.problems(b"from os import *\nprint(getcwd())\n", "star.py") == ()


def test_the_guide_to_the_letter_fails_without_being_run() -> None:
    """Only the import and the branch: clamp_limit is read, and is no parameter."""
    applied = tree.APPLIED[tree.MOE].decode()
    half = applied.replace(", clamp_limit=0.0", "").replace("x, clamp_limit=7.0", "x")
    [problem] = names.problems(half.encode(), "moe.py")
    assert problem == names.Problem(9, "the name 'clamp_limit' is not defined")


@pytest.mark.parametrize("module", [argparse, ast, dataclasses, typing, subprocess, tarfile, base_events])
def test_no_false_alarm_on_the_standard_library(module: ModuleType) -> None:
    path = Path(module.__file__ or "")
    assert names.problems(path.read_bytes(), str(path)) == ()
