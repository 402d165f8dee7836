# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/identifiers.md, made of what the kit knows.

python tests/unit/identifiers.py writes them into the pages anew.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent.parent
PAGES = (PROJECT / "docs" / "identifiers.md", PROJECT / "docs" / "identifiers.zh-CN.md")

if __name__ == "__main__":
    sys.path.insert(0, str(PROJECT / "scripts"))

from serving.client import exchange, questions  # noqa: E402
from serving.client.completion import Kind  # noqa: E402
from serving.client.questions import Options, Served, Talk  # noqa: E402
from serving.faults import codes, report, table  # noqa: E402
from serving.machine import doctor  # noqa: E402

_MAKERS = frozenset({"note", "warning", "problem"})
_CLIENT_MAKERS = _MAKERS | {"ok", "_quality", "_not_run"}
_SERVING = PROJECT / "scripts" / "serving"


def tables() -> dict[str, str]:
    """Each table by the name of its place in a page."""
    return {
        "explain": report.table(sorted(table.faults(), key=lambda row: row.name)),
        "codes": _codes(),
        "doctor": _rows("| name | what it looks at |", doctor.checks()),
        "check-model": _listed(_check_model()),
        "preflight": _listed(_preflight()),
        "smoke": _listed(_smoke()),
    }


def findings() -> dict[str, frozenset[str]]:
    """Every name that a finding can have, by the verb that makes it."""
    return {
        "doctor": frozenset(name for name, _ in doctor.checks()),
        "check-model": frozenset(_check_model()),
        "preflight": frozenset(_preflight()),
        "smoke": frozenset(_smoke()),
    }


def _codes() -> str:
    shown = ((family.name, f"{len(family.exact) + len(family.ranges)}") for family in codes.families())
    return _rows("| begins with | numbers known |", shown)


def _rows(head: str, rows: Iterable[tuple[str, str]]) -> str:
    return "\n".join([head, "|---|---|", *(f"| `{name}` | {what} |" for name, what in rows)])


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(set(names)))


def _check_model() -> Iterator[str]:
    return _given(_SERVING / "model", "*.py", _MAKERS)


def _preflight() -> Iterator[str]:
    """Its own; beside these it passes on what doctor and check-model find."""
    return _given(_SERVING / "start", "preflight.py", _MAKERS)


def _smoke() -> Iterator[str]:
    """A question's own name where it is answered well, and one for each way in which an answer can be ill."""
    yield from _given(_SERVING / "client", "*.py", _CLIENT_MAKERS)
    asked = Talk(exchange.server("http://localhost"), Served("", ""), Options(quality=True))
    for name, _ in questions.of(asked):
        yield name
        yield from (f"{name}-{kind.value}" for kind in Kind)
        if name.startswith("picture"):
            yield from (f"{name}-tokens", f"{name}-colour")


def _given(folder: Path, pattern: str, makers: frozenset[str]) -> Iterator[str]:
    """The names that the modules' own text gives to findings, at once or by way of a variable ``name``."""
    for module in sorted(folder.glob(pattern)):
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id=maker), args=[ast.Constant(value=str(given)), *_]):
                    if maker in makers:
                        yield given
                case ast.Assign(targets=[ast.Name(id="name")], value=ast.Constant(value=str(given))):
                    yield given


def filled(page: str) -> str:
    """A page with its tables as they must be, each between two marks."""
    for name, made in tables().items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = f"{before}{begin}{made}\n{end}{after}"
    return page


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(filled(path.read_text("utf-8")), "utf-8")
