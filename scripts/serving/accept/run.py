# SPDX-License-Identifier: Apache-2.0
"""``kit accept``: the phases that were asked for, one by one, into a folder that can be gone on with."""

from __future__ import annotations

import hashlib
import shlex
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchkit import state
from patchkit.errors import ExitCode, KitError, Refused
from patchkit.release import Release
from patchkit.state import Installation
from patchkit.target import Target, default_interpreter
from serving.machine.host import Host
from serving.start import preflight
from serving.typed import PLAIN, Typed

from . import device, forecast, record, refusals, server, table
from .device import Found
from .forecast import Load
from .phase import Context, Options, Outcome, Step, Verdict, not_run
from .record import Identity, Record
from .server import NotGone, ServerFailed
from .table import Need, PhaseRow

_NAMES_ITS_TENSORS = ("config.json", "model.safetensors.index.json", "quant_model_description.json")


@dataclass(frozen=True)
class Request:
    """What to prove. ``only``, ``skip`` and ``again`` name phases, ``start`` the first of them or ""."""

    model: Path
    out: Path
    options: Options
    kit_version: str
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    start: str = ""
    again: tuple[str, ...] = ()
    go_on: bool = False


@dataclass(frozen=True)
class Result:
    """What became of one phase. ``kept``: it was through before, and nothing was done."""

    row: PhaseRow
    outcome: Outcome
    kept: bool = False


@dataclass(frozen=True)
class Report:
    folder: Path
    results: tuple[Result, ...]

    @property
    def failed(self) -> bool:
        return any(result.outcome.verdict is Verdict.FAILED for result in self.results)


class Stopped(KitError):
    """The run ended before its end; the same command goes on."""

    exit_code = ExitCode.PUT_BACK
    outcome = "every finished step is kept, and no server is left"


def chosen(request: Request) -> tuple[PhaseRow, ...]:
    """The phases to run, in order.

    Raises:
        Refused: a name that no phase has, or nothing is left.
    """
    rows = table.phases()
    names = [row.name for row in rows]
    for name in (*request.only, *request.skip, *request.again, *filter(None, [request.start])):
        if name not in names:
            raise Refused(
                f"there is no phase called {name!r}", f"one of {', '.join(names)}: {{kit}} accept --list"
            )
    first = names.index(request.start) if request.start else 0
    found = tuple(
        row
        for row in rows[first:]
        if row.name not in request.skip
        and (row.name in request.only if request.only else request.options.level.has(row.level))
    )
    if not found:
        raise Refused("no phase is left to run", "{kit} accept --list")
    return found


def run(request: Request, host: Host, release: Release, target: Target, typed: Typed = PLAIN) -> Report:
    """Run what is not through yet.

    Raises:
        Refused: something that can be known before the first phase: nothing was started.
        Stopped: interrupted, or the disk is full.
        NotGone: a process of a server that nothing ends.
    """
    rows = chosen(request)
    refusals.require_data(request.options.data)
    installation = state.inspect(release, target)
    preflight.require_applied(installation, typed.options)
    model = refusals.require_model(request.model)
    python = target.python or default_interpreter()
    found = device.look(host, python)
    wanted = refusals.cards_wanted((*request.options.profile.arguments, *request.options.arguments))
    needed = forecast.disk_bytes(rows)
    refusals.require_room(request.out, host, needed)
    identity = _identity(request, installation, found)
    about = {"level": request.options.level.value, "cards": found.cards, "npus": found.name}

    def typed_with(more: str) -> str:
        return _typed(request, typed, more)

    with record.opened(request.out, identity) as opened:
        if server.sweep(request.out / server.RECORD):
            _say("a server of an earlier run that was killed was still there, and was ended")
        if any(row.needs is not Need.NOTHING for row in rows):
            refusals.require_device(found, wanted, request.options.profile.name, typed_with)
            refusals.require_idle(found, host, release, target)
        opened.head(identity, about)
        load = Load(model.bytes, found.cards)
        _say(_plan(rows, load, found, request))
        session = _Session(request, host, release, target, typed, python, found, wanted, opened)
        return Report(request.out, tuple(session.results(rows)))


def _typed(request: Request, typed: Typed, more: str) -> str:
    """The command with other options: those that the run is about, and ``more``."""
    options = f" {typed.options}" if typed.options else ""
    words = shlex.join(["--", str(request.model), *request.options.arguments])
    return f"{{kit}} accept --out {shlex.quote(str(request.out))}{options} {more} {words}"


def _identity(request: Request, installation: Installation, found: Found) -> Identity:
    digest = hashlib.sha256()
    for name in _NAMES_ITS_TENSORS:
        path = request.model / name
        digest.update(path.read_bytes() if path.is_file() else b"\0")
    return Identity(
        kit=request.kit_version,
        release=installation.release.id,
        sets={status.name: status.state.value for status in installation.sets},
        model=digest.hexdigest(),
        profile=request.options.profile.name,
        arguments=request.options.arguments,
        device=found.device.value,
    )


def _plan(rows: tuple[PhaseRow, ...], load: Load, found: Found, request: Request) -> str:
    place = found.name or ("a CPU build of vLLM, no card" if found.device is device.Device.CPU else "no card")
    shown = Load(load.checkpoint_bytes) if not found.cards else load
    for_what = "for this model and these cards" if found.cards else "for eight cards"
    heading = f"{request.model} on {place}; level {request.options.level.value}; ESTIMATED {for_what}:"
    return f"{heading}\n{forecast.text(rows, shown, request.options.chinese)}"


@dataclass(frozen=True)
class _Session:
    """One run of the command: what all of its phases share."""

    request: Request
    host: Host
    release: Release
    target: Target
    typed: Typed
    python: Path
    found: Found
    wanted: int
    record: Record

    def results(self, rows: tuple[PhaseRow, ...]) -> Iterator[Result]:
        gate = ""
        for row in rows:
            result = self._without_running(row, gate) or Result(row, self._run(row))
            _say(f"{row.name}: {result.outcome.verdict.value}{' before' if result.kept else ''}")
            if row.gate and result.outcome.verdict is Verdict.FAILED and not self.request.go_on:
                gate = gate or row.name
            yield result

    def _without_running(self, row: PhaseRow, gate: str) -> Result | None:
        """What there is to say of a phase that need not or must not run."""
        if row.name in self.request.again:
            self.record.forget(row)
        if gate:
            why = f"not started, because {gate} failed (--go-on starts it all the same)"
            return Result(row, Outcome((not_run(row.name, why),)))
        if row.needs is Need.DATA and self.request.options.data is None:
            return Result(row, Outcome((not_run(row.name, "no --data DIR was given"),)))
        if self.record.verdict(row) in record.KEEPS and not row.always:
            return Result(row, Outcome(tuple(self.record.steps(row).values())), kept=True)
        return None

    def _run(self, row: PhaseRow) -> Outcome:
        began = time.monotonic()
        try:
            folder, done = self.record.begin(row)
            found = dict(done)
            for step in self._guarded(row, self._context(row, folder, done)):
                self.record.add(row, step)
                found[step.name] = step
                _say(f"{row.name}: {step.name}: {step.verdict.value}: {step.sentence}")
            outcome = Outcome(tuple(found.values()))
            self.record.finish(row, outcome, time.monotonic() - began)
        except OSError as error:
            what = f"{error.filename or self.record.folder} could not be written ({error.strerror})"
            raise Stopped(what, "{again}    # when there is room") from error
        except Exception:
            raise
        except BaseException as interruption:
            # Whatever the rim raises for a signal: by now the server's own block has ended it.
            what = (
                f"kit accept was interrupted by {interruption or type(interruption).__name__} in {row.name}"
            )
            raise Stopped(what, "to go on: {again}") from None
        return outcome

    def _guarded(self, row: PhaseRow, context: Context) -> Iterator[Step]:
        """The steps of a phase; what goes wrong between two of them is a step of its own."""
        try:
            yield from row.load()(context)
        except ServerFailed as error:
            yield error.step(f"{row.name}.server")
        except (NotGone, OSError):
            raise
        except KitError as error:
            yield Step(row.name, Verdict.FAILED, error.what)
        except Exception as error:
            # A phase that stumbles over what it examines must not take the others with it.
            (context.folder / "kit-fault.txt").write_text(traceback.format_exc(), "utf-8")
            where = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__}: {error} (line {where.lineno} of {Path(where.filename).name})"
            yield Step(row.name, Verdict.FAILED, f"the kit itself failed: {what}; see kit-fault.txt")

    def _context(self, row: PhaseRow, folder: Path, done: Mapping[str, Step]) -> Context:
        return Context(
            model=self.request.model.absolute(),
            folder=folder.absolute(),
            out=self.record.folder.absolute(),
            python=self.python,
            packages=None if self.target.python else self.target.lock_folder.parent,
            host=self.host,
            release=self.release,
            target=self.target,
            device=self.found.device,
            cards=min(self.wanted, self.found.cards),
            options=self.request.options,
            done=done,
            earlier=self._earlier,
            say=lambda text: _say(f"{row.name}: {text}"),
            typed=self.typed,
        )

    def _earlier(self, name: str) -> tuple[Step, ...]:
        row = next(row for row in table.phases() if row.name == name)
        return tuple(self.record.steps(row).values())


def _say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


# --- what it tells ------------------------------------------------------------------------


def text(report: Report, chinese: bool = False) -> str:
    """A line for each phase, and under it what a person has to know of."""
    lines = [line for result in report.results for line in _lines(result, chinese)]
    return "\n".join([*lines, "", _verdict(report)])


def _lines(result: Result, chinese: bool) -> Iterator[str]:
    verdict = result.outcome.verdict
    mark = verdict.value.upper() if verdict is Verdict.FAILED else verdict.value
    yield f"  {mark:<11}{result.row.name:<9}{result.row.titled(chinese)}{' (before)' if result.kept else ''}"
    for step in result.outcome.steps:
        if step.verdict is not Verdict.PASSED:
            yield f"             {step.name}: {step.verdict.value}: {step.sentence}"


def _verdict(report: Report) -> str:
    verdicts = [result.outcome.verdict for result in report.results]
    counts = ", ".join(f"{n} {v.value}" for v in Verdict if (n := verdicts.count(v)))
    word = "NOT accepted" if report.failed else "accepted, as far as it was run"
    return f"{word}: {counts} of {len(verdicts)} phases; recorded in {report.folder}."


def as_json(report: Report) -> dict[str, Any]:
    return {
        "folder": str(report.folder),
        "failed": report.failed,
        "phases": [
            {
                "phase": result.row.name,
                "verdict": result.outcome.verdict.value,
                "kept": result.kept,
                "steps": [record.step_json(step) for step in result.outcome.steps],
            }
            for result in report.results
        ],
    }


def list_text(chinese: bool = False) -> str:
    """Every phase: its level, what it takes and what it proves."""
    rows, load = table.phases(), Load()
    head = "ESTIMATED for eight 910B3 and the published checkpoint:"
    proves = [f"  {row.name:<9}{row.proves_zh if chinese else row.proves}" for row in rows]
    return "\n".join([head, forecast.text(rows, load, chinese), "", "what each proves:", *proves])


def list_json() -> dict[str, Any]:
    load = Load()
    return {
        "phases": [
            {
                "name": row.name,
                "level": row.level.value,
                "title": row.title,
                "estimated_minutes": round(forecast.minutes(row, load)),
                "proves": row.proves,
            }
            for row in table.phases()
        ]
    }
