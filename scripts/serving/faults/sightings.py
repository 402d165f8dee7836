# SPDX-License-Identifier: Apache-2.0
"""What is seen while lines go by: rows, numbers, each process's first error, one that no row knows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from . import codes, screen
from .fault import Fault, Sighting
from .screen import Screen

_SHOWN = 240
_BEFORE_SIGN = 80
_MOST_PROCESSES = 64

_EXCEPTION = re.compile(r"\b(?:[A-Z]\w{0,60})?(?:Error|Exception)\b(?:: |$)")
_ERROR = re.compile(r"(?<![\w./-])(?:ERROR|FATAL|CRITICAL|Error|error)(?![\w-])")
_ERROR_WORDS = frozenset((b"ERROR", b"FATAL", b"CRITICAL", b"rror", b"Exception"))
"""One of them is in every line that either expression fits."""
_OURS = frozenset(b"vllm vLLM VLLM torch /Ascend ASCEND_ npu: npu-smi HCCL transformers raylet".split()) | {
    b"NPU "
}
"""One of them stands in any log of a server of this kind."""
_PROCESS = re.compile(r"\([A-Za-z]\w*(?: rank=\d+)?(?=[ )])[^()]*?pid=\d+[^()]*\)|\[rank\d+\]|RankID:\d+")


@dataclass
class Sightings:
    """Fed line by line."""

    faults: tuple[Fault, ...]
    is_ours: bool = False
    seen: dict[str, tuple[Fault, Sighting]] = field(default_factory=dict)
    processes: dict[str, Sighting] = field(default_factory=dict)
    """The first error of each process that names itself in its lines."""
    stray: Sighting | None = None
    """The first line of an error that no row knows."""
    stray_is_exception: bool = False

    def __post_init__(self) -> None:
        self._rows: dict[bytes, list[Fault]] = {}
        for fault in self.faults:
            for sign in fault.signs:
                self._rows.setdefault(screen.letters(sign.encode()), []).append(fault)
        self._screen = Screen((*self._rows, *_ERROR_WORDS, *codes.WORDS, *_OURS))

    def look(self, number: int, line: bytes) -> None:
        letters = screen.letters(line)
        signs = self._screen.signs_in(letters)
        is_number = bool(line.strip()) and letters.strip() in codes.ALONE
        if not signs and not is_number:
            return
        self.is_ours = self.is_ours or not _OURS.isdisjoint(signs)
        candidates = {fault.name: fault for sign in signs for fault in self._rows.get(sign, ())}
        is_error = not _ERROR_WORDS.isdisjoint(signs)
        has_number = is_number or not codes.WORDS.isdisjoint(signs)
        if candidates or is_error or has_number:
            self._read(number, line.decode("utf-8", "replace"), candidates.values(), is_error, has_number)

    def _read(
        self, number: int, line: str, candidates: Iterable[Fault], is_error: bool, has_number: bool
    ) -> None:
        signs = ((fault, fault.sign_in(line)) for fault in candidates)
        found = {fault.name: (fault, line.index(sign)) for fault, sign in signs if sign}
        if has_number and all(fault.vague for fault, _ in found.values()):
            found = codes.in_line(line) or found
        others = [fault for fault, _ in found.values()]
        for fault, at in found.values():
            if not any(map(fault.follows_from, others)):  # of two for one line, the nearer one
                self._note(fault, Sighting(number, excerpt(line, at)))
        if is_error:
            self._note_process(number, line)
        if is_error and (not found or (not self.is_ours and all(fault.general for fault in others))):
            self._note_stray(number, line)

    def _note(self, fault: Fault, sighting: Sighting) -> None:
        if fault.name in self.seen:
            _, first = self.seen[fault.name]
            sighting = replace(first, count=first.count + 1)
        self.seen[fault.name] = fault, sighting

    def _note_process(self, number: int, line: str) -> None:
        process = _PROCESS.search(line)
        error = _ERROR.search(line) or _EXCEPTION.search(line)
        if process and error and process[0] not in self.processes and len(self.processes) < _MOST_PROCESSES:
            self.processes[process[0]] = Sighting(number, excerpt(line, error.start()))

    def _note_stray(self, number: int, line: str) -> None:
        """An exception counts most; before the first one, the first line that says "error" will do."""
        if self.stray_is_exception:
            return
        exception = _EXCEPTION.search(line)
        match = exception or (_ERROR.search(line) if self.stray is None else None)
        if match:
            self.stray = Sighting(number, excerpt(line, match.start()))
            self.stray_is_exception = exception is not None

    def counting(self) -> Iterator[tuple[Fault, Sighting]]:
        """The rows that were seen; texts of any program only in a log of ours."""
        return ((fault, seen) for fault, seen in self.seen.values() if self.is_ours or not fault.general)


def excerpt(line: str, at: int) -> str:
    """The part of a line around a position, printable and short."""
    start = max(0, at - _BEFORE_SIGN)
    cut = line[start : start + 2 * _SHOWN]
    return "".join(char if char.isprintable() else " " for char in cut).strip()[:_SHOWN]
