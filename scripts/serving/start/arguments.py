# SPDX-License-Identifier: Apache-2.0
"""The words behind ``vllm serve``, as vLLM's parser understands them, but without asking it.

It takes underscores for dashes, ``--flag=value`` for ``--flag value``, and ``--flag.key value``
for a key of a JSON value; here all of these become one form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

_SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-q": "--quantization",
    "-sc": "--speculative-config",
    "-ac": "--attention-config",
    "-ep": "--enable-expert-parallel",
}
_FLAG = re.compile(r"-{1,2}[A-Za-z]")
_DEEPEST = 8


@dataclass(frozen=True)
class Given:
    """One flag as it counts. ``value`` is "" for a switch; a key of a JSON value stands behind a dot."""

    name: str
    value: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.value}".rstrip()


def model(arguments: Sequence[str]) -> str:
    """The model that is named: the first word, or ``--model``; "" where there is none."""
    if arguments and not _FLAG.match(arguments[0]):
        return arguments[0]
    return value(arguments, "--model")


def value(arguments: Sequence[str], name: str) -> str:
    """The last value of a flag, which is the one that counts; "" where it is absent."""
    return next((flag.value for flag in reversed(given(arguments)) if flag.name == name), "")


def has(arguments: Sequence[str], name: str) -> bool:
    return any(flag.name == name for flag in given(arguments))


def given(arguments: Sequence[str]) -> tuple[Given, ...]:
    """All flags, in the order given."""
    flags = [flag for word, after in pairwise([*arguments, ""]) for flag in _flags(word, after)]
    return tuple(flags)


def _flags(word: str, after: str) -> Iterator[Given]:
    if not _FLAG.match(word):
        return
    name, equals, attached = word.partition("=")
    name, dot, keys = name.partition(".")
    name = name.replace("_", "-") if name.startswith("--") else name
    name = _SHORT.get(name, name) + dot + keys
    text = attached if equals else "" if _FLAG.match(after) else after
    yield from _unfolded(name, text)


def _unfolded(name: str, text: str) -> Iterator[Given]:
    """A JSON object as one flag for each of its values; any other text as it is."""
    if not text.lstrip().startswith("{"):
        yield Given(name, text)
        return
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        yield Given(name, text)
        return
    yield from _leaves(name, found, _DEEPEST)


def _leaves(name: str, found: Any, depth: int) -> Iterator[Given]:
    if isinstance(found, dict) and found and depth:
        for key, inner in found.items():
            yield from _leaves(f"{name}.{key}", inner, depth - 1)
    else:
        yield Given(name, found if isinstance(found, str) else json.dumps(found))
