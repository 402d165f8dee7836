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

from serving.faults import codes, report, table  # noqa: E402
from serving.machine import doctor  # noqa: E402

_MAKERS = frozenset({"note", "warning", "problem"})


def tables() -> dict[str, str]:
    """Each table by the name of its place in a page."""
    return {
        "explain": report.table(sorted(table.faults(), key=lambda row: row.name)),
        "codes": _codes(),
        "doctor": _rows("| name | what it looks at |", doctor.checks()),
        "check-model": ", ".join(f"`{name}`" for name in sorted(set(_check_model()))),
    }


def _codes() -> str:
    shown = ((family.name, f"{len(family.exact) + len(family.ranges)}") for family in codes.families())
    return _rows("| begins with | numbers known |", shown)


def _rows(head: str, rows: Iterable[tuple[str, str]]) -> str:
    return "\n".join([head, "|---|---|", *(f"| `{name}` | {what} |" for name, what in rows)])


def _check_model() -> Iterator[str]:
    """The names that check-model's modules give their findings."""
    for module in sorted((PROJECT / "scripts" / "serving" / "model").glob("*.py")):
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _MAKERS:
                for given in node.args[:1]:
                    if isinstance(given, ast.Constant) and isinstance(given.value, str):
                        yield given.value


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
