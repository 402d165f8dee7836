# SPDX-License-Identifier: Apache-2.0
"""Failures and kills at a chosen file-system step of the engine, and what they may leave."""

from __future__ import annotations

import fcntl
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tree

CALLS: tuple[tuple[Any, str], ...] = (
    (os, "open"),
    (os, "write"),
    (os, "fsync"),
    (os, "fchmod"),
    (os, "fchown"),
    (os, "replace"),
    (os, "unlink"),
    (os, "listdir"),
    (os, "scandir"),
    (os, "stat"),
    (os, "lstat"),
    (io, "open"),
    (fcntl, "flock"),
)


class Steps:
    """Counts the wrapped calls and, at the chosen one (or from it on), runs ``act``."""

    def __init__(self, act: Callable[[], None] = lambda: None, at: int = 0, onwards: bool = False) -> None:
        self.act, self.at, self.onwards = act, at, onwards
        self.names: list[str] = []

    def taken(self, name: str) -> None:
        self.names.append(name)
        number = len(self.names)
        if number == self.at or (self.onwards and self.at and number > self.at):
            self.act()

    @contextmanager
    def counted(self) -> Iterator[None]:
        originals = [(module, name, getattr(module, name)) for module, name in CALLS]
        for module, name, call in originals:
            setattr(module, name, self._wrap(f"{module.__name__}.{name}", call))
        try:
            yield
        finally:
            for module, name, call in originals:
                setattr(module, name, call)

    def _wrap(self, label: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            self.taken(label)
            return call(*arguments, **options)

        return wrapped


def fail(number: int) -> Callable[[], None]:
    def act() -> None:
        raise OSError(number, os.strerror(number))

    return act


def temporaries(root: Path) -> list[str]:
    return [name for name in tree.snapshot(root) if ".step3p7-kit." in name]


def sources(snapshot: dict[str, bytes]) -> dict[str, bytes]:
    return {name: text for name, text in snapshot.items() if name.endswith(".py")}


def in_child(work: Callable[[], None]) -> int:
    """Run in a forked process; its wait status."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(99)
    return os.waitpid(child, 0)[1]
