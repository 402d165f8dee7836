# SPDX-License-Identifier: Apache-2.0
"""A model with vllm-ascend's own MoE layer in it: the router's bias that it loads, the experts it chooses.

    python -m tiny.ascend_router ROOT MODEL ANSWER.json

ROOT has both packages. vLLM builds the model and reads the checkpoint, in bfloat16, and puts
``AscendFusedMoE`` in the place of its own layer as it does on an NPU. Stood in for are
``torch_npu``, the operator that chooses (`GatingTopK`), and the way to other cards (`Nowhere`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from patchkit import probe
from target.npu_stand_in import NotModelled
from target.real_packages import ascend_from

FUSED_MOE = "vllm_ascend.ops.fused_moe.fused_moe"


@dataclass(frozen=True)
class Routed:
    """One MoE layer.

    ``asked_with``: the dtypes of logits and bias as the operator got them. ``chosen``: the experts of
    token i, whose hidden state is 1 at place i and else 0.
    """

    dtype: str
    bias: list[float]
    asked_with: list[str]
    chosen: list[list[int]]


@dataclass(frozen=True)
class Answer:
    """``layers`` by their index; ``probe``: what ``kit verify`` says of the same model class."""

    layers: dict[int, Routed]
    probe: dict[str, str]


def read_answer(path: Path) -> Answer:
    found = json.loads(path.read_text("utf-8"))
    layers = {int(index): Routed(**layer) for index, layer in found["layers"].items()}
    return Answer(layers, found["probe"])


def main(arguments: list[str]) -> None:
    root, model, answer = (Path(argument) for argument in arguments)
    with ascend_from(root):
        layers = route(model, answer.with_suffix(".group"))
    found = Answer(layers, probe.attempt("router bias", probe.router_bias))
    answer.write_text(json.dumps(asdict(found)), "utf-8")


def route(model: Path, group: Path) -> dict[int, Routed]:
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.forward_context import set_forward_context
    from vllm.model_executor.model_loader import get_model

    options = {"dtype": "bfloat16", "trust_remote_code": True, "enforce_eager": True}
    config = EngineArgs(model=str(model), **options).create_engine_config()
    with set_current_vllm_config(config), one_rank_of_ascend(config, group), torch.inference_mode():
        layers = get_model(vllm_config=config).get_language_model().model.layers
        with set_forward_context(None, config):
            return {index: ask(layer.moe) for index, layer in enumerate(layers) if layer.use_moe}


@contextmanager
def one_rank_of_ascend(config: Any, group: Path) -> Iterator[None]:
    from vllm.distributed import (
        cleanup_dist_env_and_memory,
        init_distributed_environment,
        initialize_model_parallel,
    )
    from vllm.model_executor.custom_op import op_registry_oot

    import_module("vllm_ascend.ascend_config").init_ascend_config(config)
    op_registry_oot["FusedMoE"] = import_module(FUSED_MOE).AscendFusedMoE
    init_distributed_environment(1, 0, group.as_uri(), 0, "gloo")
    initialize_model_parallel()
    try:
        yield
    finally:
        cleanup_dist_env_and_memory()


def ask(moe: Any) -> Routed:
    """The layer's own ``forward_impl``, with the logits of its own gate, up to the experts."""
    gating, nowhere = GatingTopK(), Nowhere()
    torch.ops._C_ascend.moe_gating_top_k = gating
    extra = import_module("vllm_ascend.ascend_forward_context")._EXTRA_CTX
    extra.moe_comm_method, extra.in_profile_run = nowhere, False
    x = torch.eye(moe.hidden_size, dtype=torch.bfloat16)
    logits, _ = moe.gate(x)
    moe.experts.forward_impl(x, logits)
    chosen = nowhere.experts.sort().values.tolist()
    return Routed(str(moe.router_bias.dtype), moe.router_bias.tolist(), sorted(gating.dtypes), chosen)


class Nowhere:
    """In the place of vllm-ascend's ways to exchange tokens: keeps the choice, and computes no expert."""

    experts: torch.Tensor

    def prepare(self, hidden_states: torch.Tensor, router_logits: torch.Tensor, **_: Any) -> SimpleNamespace:
        absent = dict.fromkeys(("mc2_mask", "padded_hidden_states_shape", "pertoken_scale"))
        return SimpleNamespace(hidden_states=hidden_states, router_logits=router_logits, **absent)

    def fused_experts(self, fused_experts_input: Any) -> SimpleNamespace:
        self.experts = fused_experts_input.topk_ids
        return SimpleNamespace(routed_out=fused_experts_input.hidden_states)

    def finalize(self, hidden_states: torch.Tensor, **_: Any) -> torch.Tensor:
        return hidden_states


class GatingTopK:
    """``aclnnMoeGatingTopK`` by its documentation: sigmoid, one group, the bias of the dtype of x."""

    MODELLED: ClassVar = {
        "k_group": 1,
        "group_count": 1,
        "group_select_mode": 1,
        "renorm": 1,
        "norm_type": 1,
        "out_flag": False,
    }

    def __init__(self) -> None:
        self.dtypes: set[str] = set()

    def __call__(
        self,
        x: torch.Tensor,
        *,
        k: int,
        bias_opt: torch.Tensor,
        routed_scaling_factor: float,
        eps: float,
        **options: Any,
    ) -> tuple[torch.Tensor, torch.Tensor, None]:
        self.dtypes |= {str(x.dtype), str(bias_opt.dtype)}
        if options != self.MODELLED:
            raise NotModelled(str(options))
        if bias_opt.dtype != x.dtype:
            raise ValueError(f"a bias of {bias_opt.dtype} with logits of {x.dtype}")
        scores = x.sigmoid()
        chosen = (scores + bias_opt).topk(k).indices
        weights = scores.gather(-1, chosen)
        return weights / (weights.sum(-1, keepdim=True) + eps) * routed_scaling_factor, chosen, None


if __name__ == "__main__":
    main(sys.argv[1:])
