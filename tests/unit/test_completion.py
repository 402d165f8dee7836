# SPDX-License-Identifier: Apache-2.0
"""``kit completion``: typed into real shells, with Tab, by a terminal of the test's own.

In the shell ``kit`` is a function that shows the words it was given, so what is asserted
is what Tab made of the line.
"""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import commands
import tree

KIT = tree.Kit(tree.PROJECT)
TAB, ALL = "\t", "\x1b*"
"""Readline's complete, and its insert-completions: every candidate becomes a word."""
LIMIT_S = 30
PROMPT = b"type> "
STARTS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "bind 'set bell-style none'"),
    "zsh": (["zsh", "-f", "-i"], "autoload -U compinit; compinit -u -D; unsetopt beep"),
}

Typed = Callable[[str], list[str]]


class Terminal:
    """A shell in the folder ``cwd``, with the completion of ``kit`` loaded."""

    def __init__(self, shell: str, script: Path, cwd: Path, screen: int) -> None:
        command, setting = STARTS[shell]
        self.screen = screen
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(cwd), "TERM": "dumb", "PS1": "> "}
        self.command, self.cwd = command, cwd
        self.prepare = (
            f"{setting}; source {script}; kit() {{ printf '<%s>' \"$@\"; echo '<end>'; }}; PS1='type> '"
        )

    def __call__(self, line: str) -> list[str]:
        os.write(self.screen, line.encode() + b"\r")
        shown = self.until(rb"<[^\r\n]*<end>")
        words = re.findall(r"<([^>]*)>", shown.decode())[:-1]
        return [word.rstrip("/") for word in words]  # zsh takes the slash of a folder back on Enter

    def until(self, pattern: bytes) -> bytes:
        deadline, shown = time.monotonic() + LIMIT_S, b""
        while not (found := re.search(pattern, shown)):
            assert time.monotonic() < deadline, shown
            if select.select([self.screen], [], [], 1)[0]:
                shown += os.read(self.screen, 65536)
        return found[0]


@contextmanager
def terminal(shell: str, cwd: Path) -> Iterator[Terminal]:
    script = cwd.parent / f"kit.{shell}"
    script.write_text(KIT("completion", shell).out)
    screen, end = pty.openpty()
    found = Terminal(shell, script, cwd, screen)
    with subprocess.Popen(
        found.command,
        cwd=cwd,
        env=found.environment,
        stdin=end,
        stdout=end,
        stderr=end,
        start_new_session=True,
    ) as process:
        os.close(end)
        try:
            os.write(screen, found.prepare.encode() + b"\r")
            found.until(rb"[\r\n]" + PROMPT)
            yield found
        finally:
            process.kill()
            process.wait()
            os.close(screen)


@pytest.fixture(params=STARTS)
def shell(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if shutil.which(name) is None:
        pytest.skip(f"no {name} on this machine")
    return name


@pytest.fixture
def typed(shell: str, tmp_path: Path) -> Iterator[Typed]:
    cwd = tmp_path / "home"
    (cwd / "a model").mkdir(parents=True)
    (cwd / "a file").touch()
    with terminal(shell, cwd) as found:
        yield found


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"kit ov{TAB}", ["overlay"]),
        (f"kit check{TAB}", ["check-model"]),
        (f"kit plan --vis{TAB}d{TAB}", ["plan", "--vision", "data"]),
        (f"kit verify --fa{TAB}--ro{TAB}a{TAB}", ["verify", "--fast", "--root", "a model"]),
        (f"kit plan a{TAB}", ["plan", "a model"]),
        (f"kit explain --log a{TAB}f{TAB}", ["explain", "--log", "a file"]),
        (f"kit completion z{TAB}", ["completion", "zsh"]),
        (f"kit plan --tp {TAB}8", ["plan", "--tp", "8"]),
        (f"kit nonsense {TAB}x", ["nonsense", "x"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_tab_completes(typed: Typed, line: str, words: list[str]) -> None:
    assert typed(line) == words


def test_bash_offers_every_verb_and_every_option(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    with terminal("bash", tmp_path / "home") as typed:
        assert set(typed(f"kit {ALL}")) == {*commands.NAMES, "--help", "--version"}
        for name in commands.NAMES:
            found = set(typed(f"kit {name} --{ALL}"))
            assert found == {name, *re.findall(r"--[a-z][a-z-]+", usage(name))}


def usage(verb: str) -> str:
    return KIT(verb, "--help").out.partition("\n\n")[0] + " --help"
