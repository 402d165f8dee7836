# SPDX-License-Identifier: Apache-2.0
"""The folder of a benchmark: one JSON file a finished row, each with the environment it was measured in.

A file appears by rename once its row is finished and was found whole, so a half-written one
never bears a row's name; one that is damaged later is named and measured again.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchkit.errors import Refused
from serving.bounded import Unreadable, exists, read_json_object

from .bench_figures import Figures, Row

FORMAT = 1
NPUS = "NPUs of this machine"
"""The entry of an environment that names the chips: "8 × 910B3"."""

_LIMIT = 16 << 20
_SUFFIX = ".json"


@dataclass(frozen=True)
class Measurement:
    """One finished row. ``mean_input`` is what the prompts came to, in tokens."""

    row: Row
    figures: Figures
    cards: int
    requests: int
    mean_input: float
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Results:
    """All rows of a folder, in order, and what is wrong with each file that is no result."""

    folder: Path
    measurements: tuple[Measurement, ...]
    damaged: Mapping[str, str]

    @property
    def by_row(self) -> dict[Row, Measurement]:
        return {found.row: found for found in self.measurements}


def load(folder: Path) -> Results:
    """What a folder holds; nothing, if there is no such folder yet."""
    measurements, damaged = [], {}
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        try:
            measurements.append(_measurement(read_json_object(path, _LIMIT)))
        except Unreadable as error:
            damaged[path.name] = str(error)
    return Results(folder, tuple(sorted(measurements, key=lambda found: found.row)), damaged)


def load_finished(folder: Path) -> Results:
    """As `load`, for a reader who needs a row.

    Raises:
        Refused: no such folder, or no finished row in it.
    """
    found = load(folder)
    if found.measurements:
        return found
    what = f"{folder} holds no finished row" if exists(folder) else f"{folder} is not there"
    names = ", ".join(f"{name} {why}" for name, why in found.damaged.items())
    raise Refused(f"{what} ({names})" if names else what, "measure some: {kit} bench --out DIR")


def save(folder: Path, row: Row, cards: int, environment: Mapping[str, str], raw: Path) -> Measurement:
    """Take over what ``vllm bench serve`` wrote for a row.

    Raises:
        Unreadable: it is no whole result: absent, cut, requests failed, replies too short.
    """
    document = {
        "format": FORMAT,
        "row": {"input": row.input_len, "output": row.output_len, "concurrency": row.concurrency},
        "cards": cards,
        "environment": dict(environment),
        "vllm": read_json_object(raw, _LIMIT),
    }
    found = _measurement(document)
    path = folder / f"{row.name}{_SUFFIX}"
    unfinished = path.with_suffix(".part")
    with unfinished.open("w", encoding="utf-8") as file:
        json.dump(document, file, indent=1, ensure_ascii=False)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    return found


def _measurement(document: Mapping[str, Any]) -> Measurement:
    """Every field that is used is looked at: the file may be of any age and from anyone."""
    if document.get("format") != FORMAT:
        raise Unreadable(f"is no result of this kit (format {document.get('format')!r}, wanted {FORMAT})")
    names, raw, environment = (_object(document, key) for key in ("row", "vllm", "environment"))
    row = Row(*(_count(names, key) for key in ("input", "output", "concurrency")))
    cards, requests = _count(document, "cards"), _count(raw, "num_prompts")
    _require_whole(row, raw, requests)
    return Measurement(
        row=row,
        figures=Figures(
            _number(raw, "mean_ttft_ms"),
            _number(raw, "mean_tpot_ms"),
            _number(raw, "output_throughput") / cards,
        ),
        cards=cards,
        requests=requests,
        mean_input=_count(raw, "total_input_tokens") / requests,
        environment={str(name): str(value) for name, value in environment.items()},
    )


def _require_whole(row: Row, raw: Mapping[str, Any], requests: int) -> None:
    completed = raw.get("completed")
    if completed != requests:
        raise Unreadable(f"has {completed} of {requests} requests answered")
    wanted, generated = requests * row.output_len, _count(raw, "total_output_tokens")
    if generated != wanted:
        raise Unreadable(f"has {generated} generated tokens, where {requests} replies make {wanted}")


def _object(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = document.get(key)
    if not isinstance(value, dict):
        raise Unreadable(f"has no {key!r}")
    return value


def _count(document: Mapping[str, Any], key: str) -> int:
    value = document.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Unreadable(f"has {value!r} for {key!r}, where a number above 0 is wanted")
    return value


def _number(document: Mapping[str, Any], key: str) -> float:
    value = document.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise Unreadable(f"has {value!r} for {key!r}, where a number above 0 is wanted")
    return float(value)
