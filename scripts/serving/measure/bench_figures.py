# SPDX-License-Identifier: Apache-2.0
"""What a benchmark's row is, the guide's eight of them, and what a row's figures say of each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

GUIDE_CARDS = 8

_ROUNDING = 1.01
"""How far a figure may lie above its limit before it is more than rounding."""

_SAME = 0.05
"""Two rates this near to each other are taken for the same one."""


@dataclass(frozen=True, order=True)
class Row:
    """Prompts of ``input_len`` tokens, replies of ``output_len``, ``concurrency`` requests at once."""

    input_len: int
    output_len: int
    concurrency: int

    @property
    def name(self) -> str:
        """For files: "1024-1024-20"."""
        return f"{self.input_len}-{self.output_len}-{self.concurrency}"

    @property
    def tokens(self) -> int:
        """Of one request at its end: what ``--max-model-len`` must hold."""
        return self.input_len + self.output_len

    def __str__(self) -> str:
        return f"{self.input_len} → {self.output_len} tokens, {self.concurrency} at once"


@dataclass(frozen=True)
class Figures:
    """Means over a row's requests; ``rate`` in output tokens a second and card."""

    ttft_ms: float
    """Time to the first token."""
    tpot_ms: float
    """Time per output token after the first."""
    rate: float


GUIDE = {
    Row(1024, 1024, 20): Figures(952.7, 52.1, 18.8849),
    Row(2048, 1024, 15): Figures(1105.8, 47.1, 20.8506),
    Row(4096, 1024, 15): Figures(1868.6, 49.3, 20.0091),
    Row(8192, 1024, 10): Figures(1922.6, 47.5, 20.3001),
    Row(16384, 1024, 10): Figures(4772.6, 51.8, 17.982),
    Row(32768, 1024, 8): Figures(6891.6, 47.4, 19.211),
    Row(65536, 1024, 4): Figures(29154.6, 53.0, 12.297),
    Row(131072, 1024, 2): Figures(60072.77, 34.44, 2.35),
}
"""The table of the deployment guide: 8 cards, float16, as it was published."""


def parse_row(text: str) -> Row:
    """The guide's row of an input length ("8192"), or any ("8192:1024:10", input:output:concurrency).

    Raises:
        ValueError: neither of the two.
    """
    try:
        numbers = [int(part) for part in text.split(":")]
    except ValueError:
        numbers = []
    if len(numbers) == 3 and min(numbers) > 0:
        return Row(*numbers)
    named = [row for row in GUIDE if [row.input_len] == numbers]
    if named:
        return named[0]
    lengths = ", ".join(str(row.input_len) for row in GUIDE)
    raise ValueError(f"{text!r} is no row: give INPUT:OUTPUT:CONCURRENCY, or one of the guide's {lengths}")


class Doubt(Enum):
    """What is wrong with a row whose figures cannot all be true."""

    ABOVE_LIMIT = "above concurrency / TPOT / cards"
    ONE_REQUEST = "the rate of one request"


def limit(row: Row, figures: Figures, cards: int) -> float:
    """Tokens a second and card if no time at all went into prompts: concurrency / TPOT / cards."""
    return row.concurrency / (figures.tpot_ms / 1e3) / cards


def rate_of_one_request(row: Row, figures: Figures) -> float:
    """Tokens a second that one client sees: output / (TTFT + (output - 1) · TPOT)."""
    seconds = (figures.ttft_ms + (row.output_len - 1) * figures.tpot_ms) / 1e3
    return row.output_len / seconds


def implied_rate(row: Row, figures: Figures, cards: int) -> float:
    """Tokens a second and card that TTFT and TPOT give while ``concurrency`` requests are under way."""
    return rate_of_one_request(row, figures) * row.concurrency / cards


def doubts(row: Row, figures: Figures, cards: int) -> Iterator[Doubt]:
    """Each way in which the rate contradicts the row's own TTFT and TPOT."""
    if figures.rate > limit(row, figures, cards) * _ROUNDING:
        yield Doubt.ABOVE_LIMIT
    one, implied = rate_of_one_request(row, figures), implied_rate(row, figures, cards)
    if _near(figures.rate, one) and not _near(one, implied):
        yield Doubt.ONE_REQUEST


def _near(rate: float, other: float) -> bool:
    return abs(rate / other - 1) <= _SAME
