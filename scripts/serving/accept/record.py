# SPDX-License-Identifier: Apache-2.0
"""The folder of a run: what is in it is all that a report or the next run knows.

accept.json            what was proved on what: kit, release, sets, model, cards
NN-PHASE/steps.jsonl   a step a line, on the disk before the next one begins
NN-PHASE/verdict.json  when the phase is through
NN-PHASE/*.log, *.txt  what servers and programs printed
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchkit import lock
from patchkit.errors import Refused
from serving import bounded

from .phase import Outcome, Step, Verdict
from .table import PhaseRow

HEADER = "accept.json"
STEPS = "steps.jsonl"
VERDICT = "verdict.json"

KEEPS = frozenset({Verdict.PASSED, Verdict.FINDING})
"""Verdicts of what is not done again."""

_LIMIT = 64 << 20
_OTHER = "give another folder: --out DIR"


@dataclass(frozen=True)
class Identity:
    """What a folder's figures are of: with another of these they do not belong together."""

    kit: str
    release: str
    sets: Mapping[str, str]
    model: str
    """sha256 of what names its tensors."""
    profile: str
    arguments: tuple[str, ...]
    device: str

    def as_json(self) -> dict[str, Any]:
        return {
            "kit": self.kit,
            "release": self.release,
            "sets": dict(self.sets),
            "model": self.model,
            "profile": self.profile,
            "arguments": list(self.arguments),
            "device": self.device,
        }


_WORDS = {
    "kit": "another version of the kit",
    "release": "another release",
    "sets": "other sets",
    "model": "another model",
    "profile": "another profile",
    "arguments": "other options of vllm serve",
    "device": "another kind of device",
}


@dataclass(frozen=True)
class Record:
    folder: Path

    def steps(self, phase: PhaseRow) -> dict[str, Step]:
        """The steps of a phase by name, the last one of a name."""
        found = {}
        for line in self._lines(phase):
            with contextlib.suppress(ValueError, KeyError, TypeError):  # a line that was cut
                step = step_of(json.loads(line))
                found[step.name] = step
        return found

    def _lines(self, phase: PhaseRow) -> list[str]:
        try:
            text = bounded.read(self.folder / phase.folder / STEPS, _LIMIT)
        except bounded.NotThere:
            return []
        except bounded.Unreadable as error:
            raise Refused(f"{self.folder / phase.folder / STEPS} {error}", _OTHER) from None
        return text.decode("utf-8", "replace").splitlines()

    def verdict(self, phase: PhaseRow) -> Verdict | None:
        """None where it was not begun."""
        folder = self.folder / phase.folder
        if not folder.is_dir():
            return None
        try:
            return Verdict(bounded.read_json_object(folder / VERDICT, _LIMIT)["verdict"])
        except (bounded.Unreadable, KeyError, ValueError):
            return Verdict.UNFINISHED

    def begin(self, phase: PhaseRow) -> tuple[Path, dict[str, Step]]:
        """The phase's folder, as one that is not through, and what need not be done again.

        Nothing else stays: a failure whose cause is gone must not stand beside what came after it.
        """
        folder = self.folder / phase.folder
        folder.mkdir(exist_ok=True)
        kept = {} if phase.always else {n: s for n, s in self.steps(phase).items() if s.verdict in KEEPS}
        (folder / VERDICT).unlink(missing_ok=True)
        _write_whole(folder / STEPS, "".join(_line(step) for step in kept.values()))
        return folder, kept

    def add(self, phase: PhaseRow, step: Step) -> None:
        with (self.folder / phase.folder / STEPS).open("a", encoding="utf-8") as file:
            file.write(_line(step))
            file.flush()
            os.fsync(file.fileno())

    def finish(self, phase: PhaseRow, outcome: Outcome, seconds: float) -> None:
        values = {
            "phase": phase.name,
            "verdict": outcome.verdict.value,
            "steps": len(outcome.steps),
            "seconds": round(seconds, 1),
            "ended": now(),
        }
        _write(self.folder / phase.folder / VERDICT, values)

    def forget(self, phase: PhaseRow) -> None:
        shutil.rmtree(self.folder / phase.folder, ignore_errors=True)

    def head(self, identity: Identity, about: Mapping[str, Any]) -> None:
        """Write ``accept.json``; ``about`` is what may be another in the next run."""
        begun = self.header()["begun"] if bounded.exists(self.folder / HEADER) else now()
        _write(self.folder / HEADER, identity.as_json() | {"begun": begun} | dict(about))

    def header(self) -> dict[str, Any]:
        """What ``accept.json`` says; raises Refused where there is none that can be read."""
        try:
            return bounded.read_json_object(self.folder / HEADER, _LIMIT)
        except bounded.Unreadable as error:
            raise Refused(f"{self.folder / HEADER} {error}", _OTHER) from None


@contextlib.contextmanager
def opened(folder: Path, identity: Identity) -> Iterator[Record]:
    """The record of a run, for this process alone. A new one has no header yet.

    Raises:
        Refused: the folder cannot be written, is in use, holds something else, or the run of
            another model, kit version, release, set or profile.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"{folder} cannot be made ({error.strerror})", _OTHER) from None
    with lock.held(folder):
        record = Record(folder)
        if bounded.exists(folder / HEADER):
            _require_same(folder, record.header(), identity)
        else:
            _require_empty(folder)
        yield record


def _require_empty(folder: Path) -> None:
    if names := sorted(path.name for path in folder.iterdir()):
        raise Refused(f"{folder} is no folder of kit accept, and holds {names[0]}", _OTHER)


def _require_same(folder: Path, before: Mapping[str, Any], identity: Identity) -> None:
    for name, value in identity.as_json().items():
        found = before.get(name)
        if found != value:
            both = f"{_shown(found)}, and this is {_shown(value)}"
            raise Refused(f"{folder} has a run of {_WORDS[name]}: {both}", _OTHER)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:12] if len(text) == 64 and text.isalnum() else text


def _write(path: Path, values: Mapping[str, Any]) -> None:
    _write_whole(path, json.dumps(values, indent=2, ensure_ascii=False) + "\n")


def _write_whole(path: Path, text: str) -> None:
    """Whole or not at all, whenever the run is killed."""
    draft = path.with_name(f".{path.name}.new")
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _line(step: Step) -> str:
    return json.dumps(step_json(step), ensure_ascii=False) + "\n"


def step_json(step: Step) -> dict[str, Any]:
    return {
        "name": step.name,
        "verdict": step.verdict.value,
        "sentence": step.sentence,
        "figures": dict(step.figures),
        "commands": list(step.commands),
        "suspects": list(step.suspects),
    }


def step_of(values: Mapping[str, Any]) -> Step:
    """The reverse of `step_json`.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    return Step(
        name=str(values["name"]),
        verdict=Verdict(values["verdict"]),
        sentence=str(values["sentence"]),
        figures=dict(values["figures"]),
        commands=tuple(map(str, values["commands"])),
        suspects=tuple(map(str, values["suspects"])),
    )
