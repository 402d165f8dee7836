# SPDX-License-Identifier: Apache-2.0
"""The deployment that this kit is written for: one server of eight 910B3, the float checkpoint."""

from __future__ import annotations

from serving.capacity.chips import CHIPS
from serving.capacity.plan_request import PlanRequest

CARDS = 8
CHIP = "910B3"
HBM_MIB = round(CHIPS[CHIP].hbm_gib * 1024)
"""Of one card, as ``npu-smi info`` shows it."""

UTILISATION = PlanRequest.gpu_memory_utilization
"""vLLM's default of --gpu-memory-utilization."""

WEIGHTS_GIB_PER_CARD = 46.85
"""16-bit weights of one card at tensor parallel 8, vision tower split: what ``kit plan`` computes for it."""

CHECKPOINT_BYTES = 402_730_656_512
"""The published bf16 shards, MTP included."""

CANN = "9.0.0"
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - it is named and measured, not written to

SERVE_PORT = 8000
"""vLLM's default of --port."""
