# SPDX-License-Identifier: Apache-2.0
"""What a run of the kit costs before it does anything: whole processes beside a bare start of Python.

    python tests/bench/start_up.py [ROUNDS]

The commands take turns, round by round, in CPU time. The floor is the modules of the
standard library that every verb of the set stands on; what is above it is the kit's.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench.patch_tools import KIT, WORKSPACE, Tool, one_round, pristine_tree

BARE = [sys.executable, "-I", "-S", "-c", "pass"]
FLOOR = [*BARE[:-1], "import argparse, dataclasses, enum, hashlib, pathlib, re, tomllib"]
VERBS = ("apply", "status", "verify --fast", "revert")
"""In an order in which each answers yes."""

COMMANDS = (
    Tool("bare Python", (BARE,)),
    Tool("its modules", (FLOOR,)),
    *(Tool(f"kit {verb}", ([*KIT, *verb.split(), "--root", "."],)) for verb in VERBS),
)


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 25
    if not WORKSPACE.is_dir():
        print("bench: the sandbox is not there.\nNext: make sandbox", file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory() as scratch:
        tree = pristine_tree(Path(scratch) / "tree")
        taken = [{c.name: one_round(c, tree).cpu for c in COMMANDS} for _ in range(rounds + 1)]
    found = {c.name: statistics.median(one[c.name] for one in taken[1:]) for c in COMMANDS}
    print(f"{rounds} rounds, whole processes; medians\n")
    print("| process | CPU ms | ratio to the bare start |")
    print("|---|---|---|")
    for name, cpu_s in found.items():
        print(f"| {name} | {cpu_s * 1000:.1f} | {cpu_s / found['bare Python']:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
