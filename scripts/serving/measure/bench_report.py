# SPDX-License-Identifier: Apache-2.0
"""``kit report``: a benchmark beside the guide's table and the roofline, or beside another, as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patchkit.errors import Refused
from serving.capacity import kv_cache
from serving.capacity.card_weights import card_weights, obstacles
from serving.capacity.chips import CHIPS, Chip
from serving.capacity.plan_request import PlanRequest
from serving.capacity.roofline import decode
from serving.model.model_config import ModelConfig

from .bench_figures import (
    GUIDE,
    GUIDE_CARDS,
    Doubt,
    Figures,
    Row,
    doubts,
    implied_rate,
    limit,
    rate_of_one_request,
)
from .bench_results import NPUS, Measurement, Results

_NOTHING = "–"
_LONGEST_DRIFT = 0.01
"""By how much the prompts may miss a row's input length before it is said."""

_ONE_KIND = re.compile(r"\d+ × (\S+)")
_PER_ROW = frozenset({"command", "measured at"})
"""What differs from row to row by its nature."""


@dataclass(frozen=True)
class Report:
    """``ceilings`` in output tokens a second and card; empty where no model's sizes were given."""

    first: Results
    second: Results | None = None
    ceilings: Mapping[Row, float] = field(default_factory=dict)

    @property
    def runs(self) -> tuple[Results, ...]:
        return (self.first, self.second) if self.second else (self.first,)

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(sorted({row for run in self.runs for row in run.by_row}))


def ceilings(config: ModelConfig, results: Results, chip: str) -> dict[Row, float]:
    """The decode roofline of each row, tokens a second and card: `roofline.decode` at its mean context.

    A step's bytes grow in a line with the context, so a whole reply reads what its middle reads.
    A row on so many cards as the model's sizes do not allow has none.

    Raises:
        Refused: nothing is known of such a chip.
    """
    if chip not in CHIPS:
        what = f"the memory bandwidth of {chip!r} is not known here (known: {', '.join(CHIPS)})"
        raise Refused(what, "leave --chip away, or name one of these: {again}")
    rates = {found.row: _ceiling(config, found, CHIPS[chip]) for found in results.measurements}
    return {row: rate for row, rate in rates.items() if rate is not None}


def _ceiling(config: ModelConfig, found: Measurement, chip: Chip) -> float | None:
    request = PlanRequest(cards=found.cards, tp=found.cards, chip=chip.name)
    if any(obstacles(config, request)):
        return None
    layout = kv_cache.layout(
        config.text, request.tp, request.dtype_bytes, request.max_num_batched_tokens, request.hybrid_kv
    )
    context = found.row.input_len + found.row.output_len // 2
    weights = card_weights(config, request)
    step = decode(config.text, weights, layout, chip.bandwidth, found.row.concurrency, context)
    return step.tokens_per_second / found.cards if step.tokens_per_second else None


def chip(results: Results) -> str:
    """The chip that npu-smi showed where the rows were measured, "" where there was none or several."""
    shown = {found.environment.get(NPUS, "") for found in results.measurements}
    names = [match[1] for text in shown if (match := _ONE_KIND.fullmatch(text))]
    return names[0] if len(shown) == 1 and names and names[0] in CHIPS else ""


def model_folder(results: Results) -> Path | None:
    """The folder that the measured server was given, where it is on this machine."""
    names = {found.environment.get("model folder", "") for found in results.measurements}
    folders = [Path(name) for name in sorted(names) if name and (Path(name) / "config.json").is_file()]
    return folders[0] if folders else None


# --- Markdown ---------------------------------------------------------------------


def markdown(report: Report) -> str:
    """The whole report. Every table's figures are means over the row's requests."""
    parts = [
        "# Measured beside the deployment guide",
        "Means over a row's requests. A ratio is measured / guide: below 1 is faster for TTFT and TPOT, "
        "above 1 for tokens/s.",
        *_latency(report.first),
        *_throughput(report.first, report.ceilings),
        *_contradictions(report.first),
        *_missing(report.first),
        *(_comparison(report.first, report.second) if report.second else []),
        *(part for run in report.runs for part in _environment(run)),
    ]
    return "\n\n".join(parts)


def _latency(results: Results) -> list[str]:
    head = ("input → output", "at once", "TTFT ms", "guide", "ratio", "TPOT ms", "guide", "ratio")
    rows = []
    for found in results.measurements:
        ours, guide = found.figures, GUIDE.get(found.row)
        ttft = _beside(ours.ttft_ms, guide.ttft_ms if guide else None, 1)
        tpot = _beside(ours.tpot_ms, guide.tpot_ms if guide else None, 2)
        rows.append((*_of_row(found.row), *ttft, *tpot))
    return ["## Latency", _table(head, rows)]


def _throughput(results: Results, ceiling_of: Mapping[Row, float]) -> list[str]:
    head = (
        "input → output", "at once", "tokens/s a card", "guide, as printed", "ratio",
        "guide, from its TTFT and TPOT", "ratio", "ceiling", "of it",
    )  # fmt: skip
    rows = []
    for found in results.measurements:
        row, rate, guide = found.row, found.figures.rate, GUIDE.get(found.row)
        ceiling = ceiling_of.get(row)
        doubted = "*" if guide and any(doubts(row, guide, GUIDE_CARDS)) else ""
        implied = implied_rate(row, guide, GUIDE_CARDS) if guide else None
        printed, implied_cells = (
            _beside(rate, other, 2)[1:] for other in (guide.rate if guide else None, implied)
        )
        rows.append(
            (
                *_of_row(row),
                f"{rate:.2f}" + ("*" if any(doubts(row, found.figures, found.cards)) else ""),
                printed[0] + doubted,
                printed[1],
                *implied_cells,
                f"{ceiling:.1f}" if ceiling else _NOTHING,
                f"{rate / ceiling:.1%}" if ceiling else _NOTHING,
            )
        )
    remark = (
        "The ceiling is what the memory bandwidth lets a card decode, the roofline of `kit plan`: a "
        "reference, not a forecast."
        if ceiling_of
        else "No ceiling: it needs the model's folder (`--model DIR`), the chip (`--chip 910B3`), and a "
        "model whose heads divide over the cards."
    )
    return ["## Output tokens a second and card", _table(head, rows), remark]


def _contradictions(results: Results) -> list[str]:
    """The doubted rows, ours and the guide's beside which they stand."""
    ours = [
        line
        for found in results.measurements
        for line in _doubted("measured", found.row, found.figures, found.cards)
    ]
    held_against = [(row, GUIDE[row]) for row in results.by_row if row in GUIDE]
    guide = [line for row, figures in held_against for line in _doubted("guide", row, figures, GUIDE_CARDS)]
    lines = [*ours, *guide, *_off_length(results)]
    if not lines:
        return []
    return [
        "## Rows that contradict themselves (*)",
        "\n".join(f"- {line}" for line in lines),
        *_one_request(guide),
    ]


def _doubted(who: str, row: Row, figures: Figures, cards: int) -> Iterable[str]:
    found = set(doubts(row, figures, cards))
    if Doubt.ABOVE_LIMIT in found:
        yield (
            f"{who}, {row}: {figures.rate:.2f} tokens/s a card cannot be, for {row.concurrency} requests / "
            f"{figures.tpot_ms / 1e3:.4g} s / {cards} cards are {limit(row, figures, cards):.2f} at the most."
        )
    elif Doubt.ONE_REQUEST in found:
        yield (
            f"{who}, {row}: {figures.rate:.2f} is the rate of one request "
            f"({rate_of_one_request(row, figures):.2f}); {row.concurrency} at once on {cards} cards make "
            f"{implied_rate(row, figures, cards):.2f} a card."
        )


def _one_request(doubted: list[str]) -> list[str]:
    """The guide's column as a whole, where some of it was doubted: what its figures most probably are."""
    if not doubted:
        return []
    same = [
        row for row, figures in GUIDE.items() if Doubt.ONE_REQUEST in set(doubts(row, figures, GUIDE_CARDS))
    ]
    return [
        f"In {len(same)} of the guide's {len(GUIDE)} rows its “output tokens/s a card” is, within 5 %, "
        "output / (TTFT + (output - 1) · TPOT) of the same row: what one request gets, not what a card "
        "gives. Hold your rate a card against the column computed from its TTFT and TPOT."
    ]


def _off_length(results: Results) -> Iterable[str]:
    for found in results.measurements:
        if abs(found.mean_input / found.row.input_len - 1) > _LONGEST_DRIFT:
            yield (
                f"measured, {found.row}: the prompts came to {found.mean_input:.0f} tokens on the server; "
                "is the tokenizer of the benchmark the server's own?"
            )


def _missing(results: Results) -> list[str]:
    rows = [str(row) for row in GUIDE if row not in results.by_row]
    damaged = [f"{name} {why}" for name, why in results.damaged.items()]
    lines = [*rows, *damaged]
    return (
        ["## The guide's rows that were not measured", "\n".join(f"- {line}" for line in lines)]
        if lines
        else []
    )


def _comparison(first: Results, second: Results) -> list[str]:
    """Row by row what both have; a row that only one has is named."""
    head = (
        "input → output",
        "at once",
        "TTFT A",
        "B",
        "B / A",
        "TPOT A",
        "B",
        "B / A",
        "tokens/s A",
        "B",
        "B / A",
    )
    ours, theirs = first.by_row, second.by_row
    rows = [(*_of_row(row), *_pair(ours[row], theirs[row])) for row in sorted(ours.keys() & theirs.keys())]
    lone = [f"- only in A: {row}" for row in sorted(ours.keys() - theirs.keys())]
    lone += [f"- only in B: {row}" for row in sorted(theirs.keys() - ours.keys())]
    parts = [f"## Two runs: A = `{first.folder}`, B = `{second.folder}`"]
    if rows:
        parts.append(_table(head, rows))
    return [*parts, "\n".join(lone)] if lone else parts


def _pair(first: Measurement, second: Measurement) -> tuple[str, ...]:
    cells: list[str] = []
    for name, digits in (("ttft_ms", 1), ("tpot_ms", 2), ("rate", 2)):
        a, b = getattr(first.figures, name), getattr(second.figures, name)
        theirs, ours, ratio = _beside(b, a, digits)
        cells += [ours, theirs, ratio]
    return tuple(cells)


def _environment(results: Results) -> list[str]:
    """What all rows share once; what differs, with its rows."""
    lines = []
    names = dict.fromkeys(name for found in results.measurements for name in found.environment)
    for name in (name for name in names if name not in _PER_ROW):
        values: dict[str, list[str]] = {}
        for found in results.measurements:
            values.setdefault(found.environment.get(name, _NOTHING), []).append(found.row.name)
        for value, where in values.items():
            rows = "" if len(values) == 1 else f" (rows {', '.join(where)})"
            lines.append(f"- {name}: `{_plain(value)}`{rows}")
    last = results.measurements[-1]
    lines.append(f"- measured at: {_plain(_times(results))}")
    lines.append(f"- command of row {last.row.name}: `{_plain(last.environment.get('command', _NOTHING))}`")
    return [f"## Environment of `{results.folder}`", "\n".join(lines)]


def _times(results: Results) -> str:
    times = sorted(found.environment.get("measured at", _NOTHING) for found in results.measurements)
    return times[0] if times[0] == times[-1] else f"{times[0]} … {times[-1]}"


def _plain(text: str) -> str:
    """Text from elsewhere, inside backticks: no line end, no escape sequence, no backtick ends it."""
    return "".join(c if c.isprintable() else " " for c in text).replace("`", "'")


def _of_row(row: Row) -> tuple[str, str]:
    return f"{row.input_len} → {row.output_len}", str(row.concurrency)


def _beside(ours: float, other: float | None, digits: int) -> tuple[str, str, str]:
    """Measured, held against, ratio."""
    if other is None:
        return f"{ours:.{digits}f}", _NOTHING, _NOTHING
    return f"{ours:.{digits}f}", f"{other:.{digits}f}", _ratio(ours, other)


def _ratio(ours: float, other: float) -> str:
    return f"{ours / other:.2f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Padded, so that it reads well as plain text too; figures to the right."""
    cells = [tuple(head), *(tuple(row) for row in rows)]
    widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(head))]
    lines = [
        "| " + " | ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    rule = "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


# --- for a program ----------------------------------------------------------------


def as_json(report: Report) -> dict[str, Any]:
    return {
        "ceilings": {row.name: rate for row, rate in report.ceilings.items()},
        "runs": [
            {
                "folder": str(run.folder),
                "damaged": dict(run.damaged),
                "rows": [_row_json(found) for found in run.measurements],
                "not_measured": [row.name for row in GUIDE if row not in run.by_row],
            }
            for run in report.runs
        ],
    }


def _row_json(found: Measurement) -> dict[str, Any]:
    guide = GUIDE.get(found.row)
    return {
        "input": found.row.input_len,
        "output": found.row.output_len,
        "concurrency": found.row.concurrency,
        "cards": found.cards,
        "measured": _figures_json(found.row, found.figures, found.cards),
        "guide": _figures_json(found.row, guide, GUIDE_CARDS) if guide else None,
        "environment": dict(found.environment),
    }


def _figures_json(row: Row, figures: Figures, cards: int) -> dict[str, Any]:
    return {
        "ttft_ms": figures.ttft_ms,
        "tpot_ms": figures.tpot_ms,
        "output_tokens_per_second_a_card": figures.rate,
        "implied_by_ttft_and_tpot": implied_rate(row, figures, cards),
        "doubts": [doubt.value for doubt in doubts(row, figures, cards)],
    }
