# SPDX-License-Identifier: Apache-2.0
"""How long the kit takes beside git apply, GNU patch and quilt, on the real sets, as whole processes.

    python tests/bench/patch_tools.py [ROUNDS]

The job is the same for all: the five files in, and the five files out; the kit also
proves each by its hash, and once more by ``verify --fast``. The tools take turns, round
by round, so that a machine that slows down slows them all. Printed are the medians and
the ratio to the kit with the base alone: above 1, that is faster. With the opt-in sets of the release
on the base, the kit has a row of its own.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent.parent
WORKSPACE = PROJECT / "build" / "sandbox" / "vllm-workspace"
KIT = [sys.executable, "-I", "-S", str(PROJECT / "scripts" / "kit")]
CHECKOUTS = {"vllm": "vllm", "vllm_ascend": "vllm-ascend"}

sys.path.insert(0, str(PROJECT / "scripts"))
from patchkit import release  # noqa: E402
from patchkit.chain import PRISTINE  # noqa: E402

RELEASE = release.load(PROJECT, "v0.20.2rc1")
SEALED = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "QUILT_PC": ".pc"}


@dataclass(frozen=True)
class Cost:
    """Of one round, in seconds: CPU of all its processes, and wall."""

    cpu: float
    wall: float


@dataclass(frozen=True, eq=False)
class Tool:
    """A way to do the job. ``commands`` are run one after the other in the tree."""

    name: str
    commands: tuple[list[str], ...]
    prepare: Callable[[Path, Path], None] | None = None


def pristine_tree(folder: Path) -> Path:
    """What the sets touch or look at, as committed in the sandbox's checkouts."""
    paths = [
        *(str(chain.path) for chain in RELEASE.chains if chain.digest(PRISTINE)),
        *(str(sentinel.path) for patch_set in RELEASE.sets for sentinel in patch_set.sentinels),
    ]
    for package, checkout in CHECKOUTS.items():
        wanted = [path for path in paths if path.startswith(f"{package}/")]
        wanted += [f"{package}/__init__.py", f"{package}/_version.py"]
        archive = subprocess.run(
            ["git", "-C", WORKSPACE / checkout, "archive", "HEAD", *sorted(set(wanted))],
            stdout=subprocess.PIPE,
            check=True,
        )
        folder.mkdir(exist_ok=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    for chain in RELEASE.chains:  # a new file may be the only one of its folder
        (folder / chain.path).parent.mkdir(parents=True, exist_ok=True)
    return folder


def prepare_quilt(tree: Path, diff: Path) -> None:
    patches = tree / "patches"
    patches.mkdir()
    shutil.copy(diff, patches / "set.patch")
    (patches / "series").write_text("set.patch\n")


def kit(*sets: str) -> Tool:
    """The kit with the base and some opt-in sets on it."""
    root = ["--root", "."]
    commands = (["apply", *sets, *root], ["verify", "--fast", *sets, *root], ["revert", *root])
    return Tool(" + ".join(("kit", *sets)), tuple([*KIT, *command] for command in commands))


def tools(diff: Path) -> list[Tool]:
    opt_ins = [patch_set.name for patch_set in RELEASE.opt_ins]
    return [
        kit(),
        *([kit(*opt_ins)] if opt_ins else []),
        Tool(
            "git apply",
            (
                ["git", "apply", "--whitespace=nowarn", str(diff)],
                ["git", "apply", "--whitespace=nowarn", "-R", str(diff)],
            ),
        ),
        Tool(
            "GNU patch",
            (
                ["patch", "-s", "-p1", "--binary", "-i", str(diff)],
                ["patch", "-s", "-p1", "--binary", "-R", "-i", str(diff)],
            ),
        ),
        Tool("quilt", (["quilt", "push", "-a", "-q"], ["quilt", "pop", "-a", "-q"]), prepare_quilt),
    ]


def one_round(tool: Tool, tree: Path) -> Cost:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    for command in tool.commands:
        subprocess.run(command, cwd=tree, env=SEALED, check=True, stdout=subprocess.DEVNULL)
    after, ended = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(cpu, ended - began)


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    if not WORKSPACE.is_dir():
        print("bench: the sandbox is not there.\nNext: make sandbox", file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory() as scratch:
        costs = measure(Path(scratch), rounds)
    alone = costs["kit"]
    print(f"{rounds} rounds of apply and revert (the kit: apply, verify --fast, revert); medians\n")
    print("| tool | CPU s | wall s | CPU, ratio to the kit | wall, ratio to the kit |")
    print("|---|---|---|---|---|")
    for name, cost in costs.items():
        ratios = f"{cost.cpu / alone.cpu:.2f} | {cost.wall / alone.wall:.2f}"
        print(f"| {name} | {cost.cpu:.3f} | {cost.wall:.3f} | {ratios} |")
    return 0


def measure(scratch: Path, rounds: int) -> dict[str, Cost]:
    diff = scratch / "set.patch"
    tree = pristine_tree(scratch / "diffed")
    diff.write_bytes(
        subprocess.run([*KIT, "diff", "--root", tree], stdout=subprocess.PIPE, check=True).stdout
    )
    trees: dict[Tool, Path] = {}
    for tool in tools(diff):
        if shutil.which(tool.commands[0][0]) is None:
            print(f"{tool.name}: not installed here, left out\n")
            continue
        trees[tool] = pristine_tree(scratch / tool.name.replace(" ", "-"))
        if tool.prepare:
            tool.prepare(trees[tool], diff)
        one_round(tool, trees[tool])  # a warm-up, not counted
    taken: dict[Tool, list[Cost]] = {tool: [] for tool in trees}
    for _ in range(rounds):
        for tool, tree in trees.items():
            taken[tool].append(one_round(tool, tree))
    return {
        tool.name: Cost(statistics.median(c.cpu for c in costs), statistics.median(c.wall for c in costs))
        for tool, costs in taken.items()
    }


if __name__ == "__main__":
    sys.exit(main())
