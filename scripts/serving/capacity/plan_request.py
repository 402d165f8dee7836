# SPDX-License-Identifier: Apache-2.0
"""What ``kit plan`` is asked: cards, parallelism, context, concurrency."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

DEFAULT_BATCHED_TOKENS = 2048
"""``--max-num-batched-tokens`` of ``vllm serve`` on cards below 70 GiB (``get_batch_defaults``)."""

MOST_SEQUENCES = 256
"""``--max-num-seqs`` of the same place."""


class VisionMode(Enum):
    """``--mm-encoder-tp-mode``: the tower's weights are divided, or each card has all and some pictures."""

    WEIGHTS = "weights"
    DATA = "data"


def picture_size(text: str) -> tuple[int, int]:
    """Width and height out of "1920x1080".

    Raises:
        ValueError: it is written otherwise.
    """
    width, height = text.replace("×", "x").lower().split("x")
    return int(width), int(height)


@dataclass(frozen=True)
class PlanRequest:
    """What to plan for. A context or a concurrency that is None is chosen: as much as fits."""

    cards: int = 8
    tp: int = 8
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    gpu_memory_utilization: float = 0.9
    chip: str = "910B3"
    hbm: float | None = None
    """GiB of a card as npu-smi shows it; None for what is known of the chip."""
    vision: VisionMode = VisionMode.WEIGHTS
    hybrid_kv: bool = True
    expert_parallel: bool = False
    dtype_bytes: int = 2
    max_num_batched_tokens: int = DEFAULT_BATCHED_TOKENS
    head_room: float | None = None
    """GiB beside weights and KV cache, as a start has shown; None for the assumption."""
    image: tuple[int, int] | None = None
    """Width and height in pixels of a picture whose tokens to count."""

    @property
    def tower_tp(self) -> int:
        """On how many cards the weights of the vision tower are divided."""
        return self.tp if self.vision is VisionMode.WEIGHTS else 1
