# SPDX-License-Identifier: Apache-2.0
"""The project's pages as tests see them: headings, links, and the commands in their ``console`` blocks.

A block of commands says in the line of its fence where it can be run:

    ```console                     anywhere: a unit test runs it, beside a model folder Step-3.7-Flash
    ```console container           in the container: run on the real packages, without an NPU
    ```console run-by=tests/...    run by the test that is named
    ```console npu                 nothing here can run it: it needs an NPU

A command follows ``$``, what it prints stands below it. A line of ``...`` stands for any lines,
and ``...`` within a line for any text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tree

CHINESE = ".zh-CN.md"
DOCS = tree.PROJECT / "docs"


@dataclass(frozen=True)
class Step:
    """One command and what the page says it prints; None where the page says nothing of it."""

    command: str
    output: str | None


@dataclass(frozen=True)
class Block:
    """A fenced block. ``line`` is that of its fence, 1-based."""

    page: Path
    line: int
    language: str
    marks: tuple[str, ...]
    text: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(tree.PROJECT)}:{self.line}"

    def steps(self) -> Iterator[Step]:
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            while command.endswith("\\"):
                more, _, output = output.partition("\n")
                command = f"{command[:-1].rstrip()} {more.strip()}"
            yield Step(command, output.strip("\n") or None)


@dataclass(frozen=True)
class Page:
    path: Path
    text: str

    @property
    def name(self) -> str:
        return str(self.path.relative_to(tree.PROJECT))

    @property
    def blocks(self) -> tuple[Block, ...]:
        found = re.finditer(r"^```(.*)\n((?:(?!```).*\n)*)```$", self.text, re.MULTILINE)
        return tuple(
            Block(self.path, self.text.count("\n", 0, match.start()) + 1, *_marks(match[1]), match[2])
            for match in found
        )

    @property
    def prose(self) -> str:
        """The page without its blocks."""
        return re.sub(r"^```.*\n(?:(?!```).*\n)*```$", "", self.text, flags=re.MULTILINE)

    @property
    def headings(self) -> tuple[int, ...]:
        """The level of each heading."""
        return tuple(len(mark) for mark in re.findall(r"^(#+) ", self.prose, re.MULTILINE))

    @property
    def inline(self) -> tuple[str, ...]:
        """What stands between backticks."""
        return tuple(re.findall(r"`([^`\n]+)`", self.prose))

    @property
    def links(self) -> tuple[str, ...]:
        return tuple(re.findall(r"\]\(([^)\s]+)\)", self.prose))


def _marks(fence: str) -> tuple[str, tuple[str, ...]]:
    language, *marks = fence.split() or [""]
    return language, tuple(marks)


def english() -> tuple[Page, ...]:
    return tuple(page for page in everything() if not page.name.endswith(CHINESE))


def everything() -> tuple[Page, ...]:
    names = ["README.md", "README.zh-CN.md", "CONTRIBUTING.md", "SECURITY.md", "docker/k8s/README.md"]
    paths = [*(tree.PROJECT / name for name in names), *sorted(DOCS.glob("*.md"))]
    paths.append(tree.PROJECT / "docker/k8s" / f"README{CHINESE}")
    return tuple(Page(path, path.read_text("utf-8")) for path in paths)


def chinese_of(page: Page) -> Path:
    return page.path.with_name(page.path.stem + CHINESE)


def says(output: str, expected: str) -> bool:
    """Whether a page tells the truth of an output, with its ``...`` for what it leaves out."""
    pattern = "\n".join(
        r"(?:.*\n)*?.*" if line.strip() == "..." else ".*".join(map(re.escape, line.rstrip().split("...")))
        for line in expected.splitlines()
    )
    found = "\n".join(line.rstrip() for line in output.strip("\n").splitlines())
    return re.fullmatch(pattern, found) is not None
