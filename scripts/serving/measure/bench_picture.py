# SPDX-License-Identifier: Apache-2.0
"""The picture of ``kit report``. Another Python draws it: the kit's own sees no package, so no matplotlib."""

from __future__ import annotations

import json
import os
import pkgutil
import shutil
from pathlib import Path
from typing import Any

from patchkit.errors import BundleDamaged, Refused
from serving.machine import processes

from .bench_figures import GUIDE, GUIDE_CARDS, Figures, Row, doubts, implied_rate
from .bench_report import Report

SUFFIXES = frozenset({".png", ".svg"})

_TIMEOUT_S = 120.0
_PROGRAM = "bench_drawing.py"
_NO_MATPLOTLIB = "no matplotlib"


def draw(report: Report, picture: Path, python: Path | None = None) -> None:
    """Write a PNG or an SVG, by the ending of its name.

    Args:
        report: What to show.
        picture: The file; one that is there is replaced.
        python: An interpreter with matplotlib (default: ``python3`` on PATH).

    Raises:
        Refused: another ending, no matplotlib, or the file cannot be written.
    """
    if picture.suffix not in SUFFIXES:
        raise Refused(f"{picture} ends in neither .png nor .svg", "give a name with one of the two")
    interpreter = python or Path(shutil.which("python3") or "python3")
    program = pkgutil.get_data(__package__, _PROGRAM)
    if program is None:
        raise BundleDamaged(f"the kit's own file serving/measure/{_PROGRAM} is absent", "copy the kit again")
    command = (
        interpreter,
        "-P",
        "-B",
        "-c",
        program.decode("utf-8"),
        picture.resolve(),
        json.dumps(_data(report)),
    )
    output = processes.run(command, os.environ, Path.cwd(), _TIMEOUT_S)
    if output.succeeded:
        return
    said = output.complaint or next(reversed(output.text.strip().splitlines()), "no word")
    if said == _NO_MATPLOTLIB:
        what = f"{interpreter} has no matplotlib, which draws (the Markdown needs none)"
        raise Refused(what, f"{interpreter} -m pip install matplotlib")
    raise Refused(f"{picture} was not drawn ({said})", "name another interpreter or file: {again}")


def _data(report: Report) -> dict[str, Any]:
    """The guide is there where at least one of its rows was measured: other rows have no place beside it."""
    beside = GUIDE if any(row in GUIDE for row in report.rows) else {}
    guide = [_point(row, figures, GUIDE_CARDS) for row, figures in beside.items()]
    names = ("measured",) if report.second is None else tuple(run.folder.name for run in report.runs)
    runs = [
        {
            "name": name,
            "points": [_point(found.row, found.figures, found.cards) for found in run.measurements],
        }
        for name, run in zip(names, report.runs, strict=True)
    ]
    ceiling = [{"input": row.input_len, "rate": rate} for row, rate in sorted(report.ceilings.items())]
    return {"runs": runs, "guide": guide, "ceiling": ceiling}


def _point(row: Row, figures: Figures, cards: int) -> dict[str, Any]:
    return {
        "input": row.input_len,
        "concurrency": row.concurrency,
        "ttft": figures.ttft_ms / 1e3,
        "tpot": figures.tpot_ms,
        "rate": figures.rate,
        "implied": implied_rate(row, figures, cards),
        "doubted": any(doubts(row, figures, cards)),
    }
