# SPDX-License-Identifier: Apache-2.0
"""How long ``kit explain --log`` takes for a long log, beside wc and grep on the same file in the same run.

    python tests/bench/explain_log.py [MEGABYTES]

Two logs: that of a server, whose lines repeat but for their numbers, and one in which no line is
like another. Printed are the medians of CPU time, the ratio, and the most memory that it held.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

KIT = [sys.executable, "-I", "-S", str(Path(__file__).resolve().parent.parent.parent / "scripts" / "kit")]
ROUNDS = 3
MEGABYTE = 1_000_000
SEED = 5
TEN = "error|exception|traceback|failed|fatal|denied|refused|timed out|no space|killed"
"""What a person would look for."""
WORDS = ("the", "server", "answers", "what", "was", "asked", "before", "in", "many", "words", "or", "few")


@dataclass(frozen=True)
class Cost:
    """CPU seconds, and the most bytes in memory, of one process."""

    cpu_s: float
    memory: int


def access_line(draw: random.Random) -> str:
    return f'INFO: 10.0.0.{draw.randrange(256)}:{draw.randrange(65536)} - "POST /v1/chat/completions" 200 OK'


def figures_line(draw: random.Random) -> str:
    tokens, requests = draw.random() * 1000, draw.randrange(9)
    return f"INFO 12-01 01:08:07 [loggers.py:248] throughput: {tokens:.1f} tokens/s, Running: {requests} reqs"


def request_line(draw: random.Random) -> str:
    words = " ".join(draw.choices(WORDS, k=16))
    return f"INFO [logger.py:42] Received request chatcmpl-{draw.getrandbits(64):x}: {words}"


def of_a_server(draw: random.Random) -> str:
    (kind,) = draw.choices((access_line, figures_line, request_line), weights=(90, 9, 1))
    return kind(draw)


LOGS: dict[str, Callable[[random.Random], str]] = {
    "a server's": of_a_server,
    "no line like another": request_line,
}


def write_log(path: Path, line: Callable[[random.Random], str], size: int) -> None:
    draw = random.Random(SEED)
    with path.open("w") as file:
        file.write("INFO 12-01 01:08:07 [utils.py:299] version 0.20.2\n")
        while file.tell() < size:
            file.write("".join(f"(APIServer pid=2042) {line(draw)}\n" for _ in range(1000)))


def run(command: list[str]) -> Cost:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, _, used = os.wait4(process.pid, 0)
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def main() -> int:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    print(f"a log of {size} MB, {ROUNDS} rounds; medians\n")
    print("| log | process | CPU s | MB/s | explain is so many times that | MB in memory |")
    print("|---|---|---|---|---|---|")
    for name, line in LOGS.items():
        with tempfile.TemporaryDirectory() as scratch:
            log = Path(scratch) / "server.log"
            write_log(log, line, size * MEGABYTE)
            print_costs(name, log, size)
    return 0


def print_costs(name: str, log: Path, size: int) -> None:
    commands = {
        "kit explain --log": [*KIT, "explain", "--log", str(log)],
        "grep -c, one word": ["grep", "-c", "ERROR", str(log)],
        "grep -ciE, ten words": ["grep", "-ciE", TEN, str(log)],
        "wc": ["wc", str(log)],
    }
    taken = [{process: run(command) for process, command in commands.items()} for _ in range(ROUNDS)]
    seconds = {process: statistics.median(one[process].cpu_s for one in taken) for process in commands}
    for process, cpu_s in seconds.items():
        memory = max(one[process].memory for one in taken) / MEGABYTE
        ratio = seconds["kit explain --log"] / max(cpu_s, 0.001)
        speed = size / max(cpu_s, 0.001)
        print(f"| {name} | {process} | {cpu_s:.2f} | {speed:.0f} | {ratio:.1f} | {memory:.0f} |")


if __name__ == "__main__":
    sys.exit(main())
