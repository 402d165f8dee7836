# SPDX-License-Identifier: Apache-2.0
"""What vLLM 0.20.2 to 0.25.1 lack on a CPU to run Step-3.7. Never part of the kit.

None of this is missing on an NPU, where vllm-ascend has experts of its own: nothing here
stands in for, or hides, what the kit's five files do. It is for the sandbox alone, in memory
alone, and off unless asked for: vLLM finds it (entry point ``vllm.general_plugins``) when
this folder is on ``PYTHONPATH``, and not otherwise. On another platform it does nothing.

1. Routing: ``fused_moe/cpu_fused_moe.py`` asserts softmax where experts are not grouped.
2. The activation ``swiglustep`` is not in that file's table.
3. The entry for plain SiLU there builds a custom operator within the forward pass, which ends in
   "Current vLLM config is not set".
4. oneDNN's matrix product takes rows that are contiguous and no others, while the tower hands the
   projector a transposed view; a batch of one picture then fails.
5. With expert parallelism the experts of another rank are looked for in this one's list.
6. Where the processor has AVX-512 and the experts' sizes are multiples of 32, they are packed for a
   grouped product that has activations of its own, and `swiglustep` is none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import silu

LIMIT = 7.0
"""vLLM takes no other for the routed experts."""

Routing = tuple[torch.Tensor, torch.Tensor]


def register() -> None:
    """Fill the gaps of the vLLM that is imported. May be called more than once."""
    from vllm import _custom_ops
    from vllm.model_executor.layers.fused_moe import cpu_fused_moe
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.platforms import current_platform

    if not current_platform.is_cpu() or hasattr(cpu_fused_moe, "sandbox_filled"):
        return
    cpu_fused_moe.sandbox_filled = True
    cpu_fused_moe.select_experts = routed_by_sigmoid(cpu_fused_moe.select_experts)
    cpu_fused_moe._CPU_MOE_ACT_FN |= {MoEActivation.SILU: swiglu, MoEActivation.SWIGLUSTEP: swiglustep}
    cpu_fused_moe.CPUFusedMOE.forward_torch = with_experts_elsewhere(cpu_fused_moe)
    cpu_fused_moe.CPUFusedMOE.check_grouped_gemm = one_expert_after_the_other
    _custom_ops.onednn_mm = with_contiguous_rows(_custom_ops.onednn_mm)


def routed_by_sigmoid(original: Callable[..., Routing]) -> Callable[..., Routing]:
    """``select_experts``, with one more way to route.

    The bias has a say in which experts are chosen and none in their weights.
    """

    def select_experts(router_logits: torch.Tensor, top_k: int, **options: Any) -> Routing:
        if options["use_grouped_topk"] or options["scoring_func"] != "sigmoid":
            return original(router_logits=router_logits, top_k=top_k, **options)
        scores = router_logits.float().sigmoid()
        chosen = (scores + options["e_score_correction_bias"]).topk(top_k).indices
        weights = scores.gather(-1, chosen)
        if options["renormalize"]:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return weights * options["routed_scaling_factor"], chosen.to(torch.int32)

    return select_experts


def swiglu(x: torch.Tensor) -> torch.Tensor:
    """``[..., 2 * d]``, gate and up, to ``[..., d]``."""
    gate, up = x.chunk(2, dim=-1)
    return silu(gate) * up


def swiglustep(x: torch.Tensor) -> torch.Tensor:
    """`swiglu` with the gate clamped after the SiLU, and up on both sides."""
    gate, up = x.chunk(2, dim=-1)
    return silu(gate).clamp(max=LIMIT) * up.clamp(-LIMIT, LIMIT)


def with_experts_elsewhere(cpu_fused_moe: Any) -> Callable[..., torch.Tensor]:
    """``CPUFusedMOE.forward_torch``: where a rank has some of the experts, it gives its share of the sum."""
    original: Callable[..., torch.Tensor] = cpu_fused_moe.CPUFusedMOE.forward_torch

    def forward_torch(
        self: Any,
        layer: Any,
        x: torch.Tensor,
        weights: torch.Tensor,
        chosen: torch.Tensor,
        activation: Any,
        *others: Any,
    ) -> torch.Tensor:
        if layer.expert_map is None:
            return original(self, layer, x, weights, chosen, activation, *others)
        result = torch.zeros_like(x)
        for expert, place in enumerate(layer.expert_map.tolist()):
            if place >= 0:
                inner = cpu_fused_moe._CPU_MOE_ACT_FN[activation](layer.gate_up_linear[place](x))
                weight = weights.where(chosen == expert, 0).sum(dim=-1, keepdim=True)
                result += (weight * layer.down_linear[place](inner)).to(x.dtype)
        return result

    return forward_torch


def one_expert_after_the_other(_self: Any, _layer: Any) -> tuple[bool, str]:
    """``CPUFusedMOE.check_grouped_gemm``: never, so that every processor computes the same way."""
    return False, "none"


def with_contiguous_rows(product: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def onednn_mm(handler: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return product(handler, x.contiguous(), bias)

    return onednn_mm
