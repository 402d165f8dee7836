# SPDX-License-Identifier: Apache-2.0
"""What is publicly known of the memory of the Atlas A2 chips. A chip that is not here needs ``--hbm``."""

from __future__ import annotations

from dataclasses import dataclass

KEPT_BACK_GIB = 3.04
"""GiB between what npu-smi shows of a card and what PyTorch can have, kept by driver and firmware.

Of a 64 GiB card (65536 MB) PyTorch reports 60.96 or 60.97 GiB in vllm-ascend's issues 19, 1127,
1987 and 5020, and 61.27 GiB in its pull request 8289; the least of these is taken.
"""


@dataclass(frozen=True)
class Chip:
    """``hbm_gib`` as npu-smi shows it; ``bandwidth`` in bytes a second, None where no source was found."""

    name: str
    hbm_gib: float
    bandwidth: float | None
    source: str


_TABLES = "size: HAMi's device table; bandwidth: the hardware table of JiusiServe/light-llm-simulator"

CHIPS = {
    chip.name: chip
    for chip in (
        Chip("910B2", 64, 1.6e12, _TABLES),
        Chip("910B3", 64, 1.6e12, _TABLES),
        Chip("910B4", 32, 0.8e12, _TABLES),
        Chip("910B4-1", 64, None, "size: npu-smi output in issue 47 of HAMi-WebUI"),
    )
}
