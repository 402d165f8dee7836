# SPDX-License-Identifier: Apache-2.0
"""``kit bench``: the guide's eight rows, or others, measured on a running server by ``vllm bench serve``.

Every row draws a seed of its own. The prompts of vLLM's random data set follow from the seed: with
one for all, a row measured again, or one that begins like the row before, would be read from the
server's prefix cache, and its TTFT would be that of the cache. For the same reason a row is warmed
up by other prompts and not by ``--num-warmups``, which sends the first measured prompt.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import IO, Any

from patchkit.errors import ExitCode, KitError, Refused
from serving import foreground
from serving.bounded import Unreadable
from serving.machine import npu_smi
from serving.machine.host import Host

from . import bench_results, bench_server
from .bench_figures import GUIDE, GUIDE_CARDS, Row
from .bench_results import Measurement
from .bench_server import Server

DEFAULT_ROUNDS = 4
DEFAULT_TIMEOUT_S = 7200.0

_WARM_UP_TOKENS = 16
_WORK = ".running"
_LOG_END = 6
_LOG_BYTES = 1 << 16
_POLL_S = 1.0
_BAR = re.compile(r"(\d+)/(\d+) \[")
"""Of the progress bar that vLLM prints: requests answered, requests in all."""

_ERROR = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception)\b(?!\s*\d+: Traceback)")
"""As Python ends a traceback, and as vLLM lists the requests that failed."""


@dataclass(frozen=True)
class BenchRequest:
    """What to measure, where, and into which folder.

    ``rounds`` requests follow each other at each of a row's ``concurrency`` places.
    """

    url: str
    out: Path
    rows: tuple[Row, ...] = tuple(GUIDE)
    rounds: int = DEFAULT_ROUNDS
    cards: int = GUIDE_CARDS
    served_model_name: str | None = None
    tokenizer: Path | None = None
    key: str = ""
    timeout_s: float = DEFAULT_TIMEOUT_S
    """For one row with its warm-up."""


class State(Enum):
    MEASURED = "measured"
    KEPT = "kept"
    DOES_NOT_FIT = "does not fit"
    FAILED = "failed"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Outcome:
    """What became of one row."""

    row: Row
    state: State
    what: str
    measurement: Measurement | None = None
    log_end: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    folder: Path
    server: Server
    outcomes: tuple[Outcome, ...]
    damaged: Mapping[str, str]

    @property
    def complete(self) -> bool:
        """Every row that was asked for has a result."""
        return all(outcome.measurement for outcome in self.outcomes)


class Stopped(KitError):
    """A signal came while a row was measured."""

    exit_code = ExitCode.PUT_BACK
    outcome = "its unfinished row is not kept, every finished one is"


class _RowFailed(Exception):
    """``vllm bench serve`` did not end well; says how."""


def run(request: BenchRequest, about: Mapping[str, str], host: Host) -> Report:
    """Measure every row that has no result yet.

    Args:
        request: What to measure.
        about: Recorded with every row: versions of the kit, the set, the packages.
        host: The machine, for its ``npu-smi`` and the server's command line.

    Raises:
        Refused: nothing can be measured: no server, no ``vllm``, no tokenizer, a folder in use.
        Stopped: interrupted; finished rows stay.
    """
    _require_sensible(request)
    vllm = shutil.which("vllm")
    if vllm is None:
        what = "the vllm command, which measures, is not on PATH"
        raise Refused(what, "run this in the container, or set PATH to where vllm is")
    server = bench_server.look(request.url, request.key, request.served_model_name)
    tokenizer = _tokenizer(request, server)
    environment = dict(about) | _environment(request, server, host)
    with _sole_use(request.out) as work:
        before = bench_results.load(request.out)
        session = _Session(request, server, Path(vllm), tokenizer, environment, work)
        outcomes = tuple(session.outcomes(before.by_row))
    return Report(request.out, server, outcomes, before.damaged)


def _require_sensible(request: BenchRequest) -> None:
    for value, name in (
        (request.rounds, "--rounds"),
        (request.cards, "--cards"),
        (request.timeout_s, "--timeout"),
    ):
        if value < 1:
            raise Refused(f"{name} {value:g} makes no sense", "give a number above 0: {again}")


def _tokenizer(request: BenchRequest, server: Server) -> Path:
    """The folder whose tokenizer makes the prompts: the server's own, where it is on this machine."""
    folder = request.tokenizer or Path(server.root)
    if (folder / "tokenizer_config.json").is_file():
        return folder.resolve()
    if request.tokenizer:
        raise Refused(f"{folder} holds no tokenizer_config.json", "give the model folder: --tokenizer DIR")
    what = f"the server's model folder {server.root or '(it does not say which)'} is not on this machine"
    raise Refused(what, "give a folder with its tokenizer: {again} --tokenizer DIR")


def _environment(request: BenchRequest, server: Server, host: Host) -> dict[str, str]:
    found = {
        "server": server.url,
        "server's vLLM": server.version,
        "server's command": bench_server.command_line(host, server),
        "served model name": server.name,
        "model folder": server.root,
        "max_model_len": str(server.max_model_len),
        "cards": str(request.cards),
        bench_results.NPUS: _npus(host),
    }
    return {name: value for name, value in found.items() if value}


def _npus(host: Host) -> str:
    """ "8 × 910B3", "" where npu-smi shows none."""
    if not host.npu_smi:
        return ""
    names = [chip.name for chip in npu_smi.parse(host.npu_smi_info.text).chips]
    return ", ".join(f"{names.count(name)} × {name}" for name in sorted(set(names)))


@contextlib.contextmanager
def _sole_use(folder: Path) -> Iterator[Path]:
    """The folder for work in progress, for one run at a time: two at once would measure each other."""
    work = folder / _WORK
    try:
        work.mkdir(parents=True, exist_ok=True)
        lock = (work / "lock").open("w")
    except OSError as error:
        raise Refused(
            f"{folder} cannot be written to ({error.strerror})", "give another: --out DIR"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what = f"another kit bench is measuring into {folder}"
            raise Refused(what, "wait for it: two at once would measure each other") from None
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)


@dataclass(frozen=True)
class _Session:
    """One run of the command: what all of its rows share."""

    request: BenchRequest
    server: Server
    vllm: Path
    tokenizer: Path
    environment: Mapping[str, str]
    work: Path

    def outcomes(self, before: Mapping[Row, Measurement]) -> Iterator[Outcome]:
        rows, away = self.request.rows, False
        for number, row in enumerate(rows, 1):
            place = f"row {number} of {len(rows)}, {row}"
            outcome = self._without_measuring(row, before, away) or self._measure(row, place)
            if outcome.state is State.FAILED:
                away = not bench_server.is_up(self.server, self.request.key)
            _say(f"{place}: {_told(outcome)}")
            yield outcome

    def _without_measuring(self, row: Row, before: Mapping[Row, Measurement], away: bool) -> Outcome | None:
        """What there is to say of a row that need not or cannot be measured."""
        if row in before:
            return Outcome(row, State.KEPT, "measured before", before[row])
        longest = self.server.max_model_len
        if row.tokens > longest:
            what = f"a request has {row.tokens} tokens, the server takes {longest} (--max-model-len)"
            return Outcome(row, State.DOES_NOT_FIT, what)
        return Outcome(row, State.NOT_RUN, "the server went away") if away else None

    def _measure(self, row: Row, place: str) -> Outcome:
        log = self.request.out / f"{row.name}.log"
        raw = self.work / f"{row.name}.json"
        raw.unlink(missing_ok=True)
        requests = row.concurrency * self.request.rounds
        seed = secrets.randbelow(1 << 31)
        command = self._command(row, requests, row.output_len, seed)
        saving = ["--save-result", "--result-dir", str(raw.parent.resolve()), "--result-filename", raw.name]
        warm_up = self._command(row, row.concurrency, min(row.output_len, _WARM_UP_TOKENS), seed ^ 1)
        environment = dict(self.environment) | {
            "measured at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "command": shlex.join(["vllm", *command[1:]]),
        }
        deadline = time.monotonic() + self.request.timeout_s
        try:
            with log.open("wb") as output:
                self._drive(warm_up, output, log, deadline, f"{place}: warm-up")
                self._drive([*command, *saving], output, log, deadline, place)
            found = bench_results.save(self.request.out, row, self.request.cards, environment, raw)
        except _RowFailed as error:
            what = str(error)
        except Unreadable as error:
            what = f"the result {error}"
        else:
            return Outcome(row, State.MEASURED, f"{requests} requests", found)
        return Outcome(row, State.FAILED, f"{what}; its log is {log}", log_end=_end(log))

    def _command(self, row: Row, requests: int, output_len: int, seed: int) -> list[str]:
        return serve_command(str(self.vllm), self.server, self.tokenizer, row, requests, output_len, seed)

    def _drive(self, command: list[str], output: IO[bytes], log: Path, deadline: float, place: str) -> None:
        """Run to its end, showing how far it is.

        Raises:
            _RowFailed: it ended badly, or not in time.
        """
        environment = _child_environment(os.environ, self.server.host, self.request.key)
        try:
            with foreground.running(command, environment, self.work, output, subprocess.STDOUT) as process:
                self._wait(process, log, deadline, place)
        except Exception:
            raise
        except BaseException as interruption:
            # Whatever the rim raises for a signal. The rows that are finished are on the disk.
            what = f"kit bench was interrupted by {interruption or type(interruption).__name__}"
            raise Stopped(what, "to go on with the other rows: {again}") from None
        finally:
            _show("")
        if process.returncode:
            raise _RowFailed(f"vllm bench serve ended with exit code {process.returncode}")

    def _wait(self, process: subprocess.Popen[bytes], log: Path, deadline: float, place: str) -> None:
        started = time.monotonic()
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise _RowFailed(f"no end after {self.request.timeout_s:.0f} s (--timeout)")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
            _show(f"{place}: {_progress(log)}{time.monotonic() - started:.0f} s")


def serve_command(
    vllm: str, server: Server, tokenizer: Path, row: Row, requests: int, output_len: int, seed: int
) -> list[str]:
    """``vllm bench serve`` for one row: greedy, and (the random data set sees to it) to the last token."""
    return [
        vllm, "bench", "serve",
        "--backend", "openai",
        "--base-url", server.url,
        "--endpoint", "/v1/completions",
        "--model", server.root or server.name,
        "--served-model-name", server.name,
        "--tokenizer", str(tokenizer),
        "--trust-remote-code",
        "--dataset-name", "random",
        "--random-input-len", str(row.input_len),
        "--random-output-len", str(output_len),
        "--random-range-ratio", "0",
        "--num-prompts", str(requests),
        "--max-concurrency", str(row.concurrency),
        "--temperature", "0",
        "--seed", str(seed),
    ]  # fmt: skip


def _child_environment(environment: Mapping[str, str], host: str, key: str) -> dict[str, str]:
    """The caller's, with the key where vLLM reads it, and no proxy between the two."""
    found = dict(environment) | {"PYTHONUNBUFFERED": "1"}
    for name in ("no_proxy", "NO_PROXY"):
        found[name] = ",".join(filter(None, (environment.get(name), host)))
    if key:
        found["OPENAI_API_KEY"] = key
    return found


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _progress(log: Path) -> str:
    """ "45 of 80 requests, ", or "" before the first."""
    bars = _BAR.findall(_tail(log))
    return f"{bars[-1][0]} of {bars[-1][1]} requests, " if bars else ""


def _end(log: Path) -> tuple[str, ...]:
    """The last lines that name an error, each once; where none does, the last that say anything."""
    lines = [line.split("\r")[-1].strip() for line in _tail(log).splitlines()]
    told = [line for line in lines if re.search(r"\w", line) and not _BAR.search(line)]
    errors = list(dict.fromkeys(line for line in told if _ERROR.search(line)))
    return tuple((errors or told)[-_LOG_END:])


def _show(line: str) -> None:
    """One line that the next one replaces; for a terminal alone."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# --- for a person -----------------------------------------------------------------


def _told(outcome: Outcome) -> str:
    found = outcome.measurement
    if found is None:
        return f"{outcome.state.value.upper()}: {outcome.what}"
    return f"{outcome.state.value} ({outcome.what}): {_figures(found)}"


def _figures(found: Measurement) -> str:
    figures = found.figures
    return (
        f"TTFT {figures.ttft_ms:.1f} ms, TPOT {figures.tpot_ms:.2f} ms, "
        f"{figures.rate:.2f} output tokens/s a card"
    )


def text(report: Report) -> str:
    """What is now in the folder, and every row that is not."""
    server = report.server
    done = sum(outcome.measurement is not None for outcome in report.outcomes)
    heading = f"{server.name} at {server.url}, max_model_len {server.max_model_len}"
    parts = [
        [heading],
        [line for outcome in report.outcomes for line in _lines(outcome)],
        [f"damaged and measured again: {name} {why}" for name, why in report.damaged.items()],
        [f"{done} of {len(report.outcomes)} rows are in {report.folder}."],
        _longer_context(report),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _lines(outcome: Outcome) -> list[str]:
    row = outcome.row
    head = f"  {row.input_len:>7} → {row.output_len:<6} at {row.concurrency:<4} {_told(outcome)}"
    return [head, *(f"      | {line}" for line in outcome.log_end)]


def _longer_context(report: Report) -> list[str]:
    needed = [o.row.tokens for o in report.outcomes if o.state is State.DOES_NOT_FIT]
    if not needed:
        return []
    return [
        f"For the rows that do not fit start the server with --max-model-len {max(needed)} and type the",
        "same command again: what is measured stays.",
    ]


# --- for a program ----------------------------------------------------------------


def as_json(report: Report) -> dict[str, Any]:
    return {
        "results": str(report.folder),
        "server": {
            "url": report.server.url,
            "served_model_name": report.server.name,
            "max_model_len": report.server.max_model_len,
            "version": report.server.version,
        },
        "complete": report.complete,
        "rows": [_row_json(outcome) for outcome in report.outcomes],
        "damaged": dict(report.damaged),
    }


def _row_json(outcome: Outcome) -> dict[str, Any]:
    row, found = outcome.row, outcome.measurement
    return {
        "input": row.input_len,
        "output": row.output_len,
        "concurrency": row.concurrency,
        "state": outcome.state.value,
        "what": outcome.what,
        "log_end": list(outcome.log_end),
        "ttft_ms": found.figures.ttft_ms if found else None,
        "tpot_ms": found.figures.tpot_ms if found else None,
        "output_tokens_per_second_a_card": found.figures.rate if found else None,
    }
