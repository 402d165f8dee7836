# SPDX-License-Identifier: Apache-2.0
"""What a run is likely to take: estimates for the person who is about to start it, and named as such."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from serving.machine import reference

from .table import Need, PhaseRow

GIB = 1 << 30
READING_GIB_S = 0.4
"""ASSUMED: how fast a checkpoint comes from the disk to the cards."""

WARM_UP_MINUTES = 4.0
"""ASSUMED: from the last weight to the first answer: profiling, KV cache, captured graphs."""


@dataclass(frozen=True)
class Load:
    """What is started again and again. ``cards`` is 0 on a CPU, of which nothing is estimated."""

    checkpoint_bytes: int = reference.CHECKPOINT_BYTES
    cards: int = reference.CARDS

    @property
    def start_minutes(self) -> float:
        return self.checkpoint_bytes / GIB / READING_GIB_S / 60 + WARM_UP_MINUTES


def minutes(row: PhaseRow, load: Load) -> float:
    """Of one phase: its own work, longer on fewer cards, and the starts of the whole model."""
    slower = reference.CARDS / load.cards if load.cards and row.needs is not Need.NOTHING else 1.0
    return row.minutes * slower + row.starts * load.start_minutes


def disk_bytes(rows: Iterable[PhaseRow]) -> int:
    return sum(row.disk_mib for row in rows) << 20


def text(rows: Sequence[PhaseRow], load: Load, chinese: bool) -> str:
    """The phases with their estimated times, and the sum."""
    found = [(row, minutes(row, load)) for row in rows]
    lines = [
        f"  {row.name:<9}{row.level.value:<8}{shown(took):>8}   {row.titled(chinese)}" for row, took in found
    ]
    total = f"  {'in all':<17}{shown(sum(took for _, took in found)):>8}   {disk_bytes(rows) >> 20} MiB"
    return "\n".join([*lines, total])


def shown(count: float) -> str:
    """ "12 min", "3.5 h" """
    return f"{count:.0f} min" if count < 90 else f"{count / 60:.1f} h"
