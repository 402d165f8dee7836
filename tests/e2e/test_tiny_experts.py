# SPDX-License-Identifier: Apache-2.0
"""The five files' vllm-ascend half: the tiny model's MoE layers by the patched, real ``unified_apply_mlp``.

The layers get what a real prompt gives them, and the result has to be the reference's. How rows
and group lists reach the function depends on how the cards exchange tokens (``MoECommType``);
in v0.20.2rc1, unquantised:

ALLGATHER
    ``TokenDispatcherWithAllGather``: sizes of groups (``group_list_type`` 1). The default on one
    Atlas A2 node; its dispatcher runs here, as it is, with two operators stood in for. It also is
    the one that can scale the rows beforehand (``apply_router_weight_on_input``, one expert a token).
ALLTOALL
    ``TokenDispatcherWithAll2AllV``: sizes, too.
MC2
    ``TokenDispatcherWithMC2``: ends of groups (``group_list_type`` 0).

The third form that ``cumsum_group_list`` knows, pairs of expert and size, comes from none of
them, and only the quantised path converts it. ``topk_scales``, the router's weights applied
between the two products, is set by none of the three; `unified_apply_mlp` takes it all the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from target.real_packages import MOE_ARGS, MOE_MLP, ascend_from
from tiny.conversations import LONG_CHINESE
from tiny.reference import Feature, Reference
from tiny.tokenizer import train

DISPATCHER = "vllm_ascend.ops.fused_moe.token_dispatcher"

LAYERS = {2: "silu", 3: "swiglustep", 4: "swiglustep"}
"""The MoE layers of the tiny model, and what vLLM calls their activation. The last two are clamped."""

TOLERANCE = 2e-6
"""Of the largest value, for float32; a quarter of it or less was seen."""


@dataclass(frozen=True)
class Ascend:
    """The real modules of one version of vllm-ascend."""

    mlp: Any
    args: Any
    dispatcher: Any


@dataclass(frozen=True)
class Layer:
    """A MoE layer and what a prompt gives it: ``x`` ``[T, H]``; weights and experts ``[T, top_k]``."""

    index: int
    x: torch.Tensor
    weights: torch.Tensor
    experts: torch.Tensor
    routed: torch.Tensor
    w1: torch.Tensor
    w2: torch.Tensor

    @property
    def activation(self) -> str:
        return LAYERS[self.index]

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the rows, sorted by expert: their places among all ``T * top_k`` choices; the groups' sizes."""
        flat = self.experts.flatten()
        return flat.argsort(stable=True), torch.bincount(flat, minlength=len(self.w1))


class Watched(Reference):
    """Keeps what the MoE layers are given."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.given: dict[int, torch.Tensor] = {}

    def feed_forward(self, index: int, x: torch.Tensor) -> torch.Tensor:
        self.given[index] = x
        return super().feed_forward(index, x)


@pytest.fixture(scope="module")
def reference(flat_model: Path) -> Watched:
    watched = Watched(flat_model)
    watched.log_probabilities(train().encode(LONG_CHINESE).ids)
    return watched


@pytest.fixture(scope="module", params=LAYERS, ids=lambda index: f"layer {index}")
def layer(request: pytest.FixtureRequest, reference: Watched) -> Layer:
    x = reference.given[request.param]
    weights, experts = reference.route(request.param, x)
    part = reference.moe(request.param)
    both = torch.cat([part["gate_proj.weight"], part["up_proj.weight"]], dim=1)
    return Layer(
        request.param,
        x,
        weights,
        experts,
        routed=reference.routed_experts(request.param, x),
        w1=both.transpose(1, 2).contiguous(),
        w2=part["down_proj.weight"].transpose(1, 2).contiguous(),
    )


@pytest.fixture(scope="module")
def patched(patched_root: Path) -> Ascend:
    return modules(patched_root)


@pytest.fixture(scope="module")
def pristine(pristine_root: Path) -> Ascend:
    return modules(pristine_root)


def modules(root: Path) -> Ascend:
    with ascend_from(root):
        return Ascend(*(import_module(name) for name in (MOE_MLP, MOE_ARGS, DISPATCHER)))


def experts_input(ascend: Ascend, layer: Layer, **changes: Any) -> Any:
    """What ``AscendUnquantizedFusedMoEMethod.apply`` hands to every way to exchange tokens."""
    given = {
        "hidden_states": layer.x,
        "topk_weights": layer.weights,
        "topk_ids": layer.experts.to(torch.int32),
        "w1": layer.w1,
        "w2": layer.w2,
        "quant_type": ascend.args.QuantType.NONE,
        "dynamic_eplb": False,
        "activation": layer.activation,
    }
    return ascend.args.build_fused_experts_input(**given | changes)


def apply(ascend: Ascend, experts: Any, dispatched: Any) -> torch.Tensor:
    given = ascend.args.build_mlp_compute_input(
        fused_experts_input=experts, token_dispatch_output=dispatched, use_fusion_ops=True
    )
    result, _ = ascend.mlp.unified_apply_mlp(mlp_compute_input=given)
    return torch.as_tensor(result)


def dispatched(ascend: Ascend, layer: Layer, list_type: int, scales: bool) -> Any:
    """Rows and group list as a dispatcher leaves them."""
    order, sizes = layer.rows()
    return ascend.args.MoETokenDispatchOutput(
        hidden_states=layer.x[order // layer.experts.shape[1]],
        group_list=sizes.cumsum(0) if list_type == 0 else sizes,
        group_list_type=list_type,
        combine_metadata=None,
        topk_scales=layer.weights.flatten()[order, None] if scales else None,
    )


def combined(layer: Layer, rows: torch.Tensor, weigh: bool) -> torch.Tensor:
    """Back to one row a token."""
    order, _ = layer.rows()
    weighed = rows * layer.weights.flatten()[order, None] if weigh else rows
    return torch.zeros_like(layer.x).index_add(0, order // layer.experts.shape[1], weighed)


def worst_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """In units of the largest expected value."""
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("scales", [False, True], ids=["weights after", "weights between"])
@pytest.mark.parametrize("list_type", [0, 1], ids=["ends: MC2", "sizes: ALLGATHER, ALLTOALL"])
@pytest.mark.parametrize("need_trans", [False, True], ids=["as is", "transposed"])
def test_the_patched_file_computes_the_layer(
    patched: Ascend, layer: Layer, list_type: int, scales: bool, need_trans: bool
) -> None:
    turned = {name: getattr(layer, name).transpose(1, 2).contiguous() for name in ("w1", "w2")}
    experts = experts_input(patched, layer, need_trans=need_trans, **(turned if need_trans else {}))

    rows = apply(patched, experts, dispatched(patched, layer, list_type, scales))

    assert worst_error(combined(layer, rows, weigh=not scales), layer.routed) < TOLERANCE


@pytest.mark.parametrize("list_type", [0, 1], ids=["ends: MC2", "sizes: ALLGATHER, ALLTOALL"])
def test_the_pristine_file_computes_a_clamped_layer_without_its_clamp(
    pristine: Ascend, flat_model: Path, layer: Layer, list_type: int
) -> None:
    """So the test above can fail; and this is what a user gets who leaves the vllm-ascend half out."""
    unclamped = Reference(flat_model, [Feature.CLAMP]).routed_experts(layer.index, layer.x)

    rows = apply(pristine, experts_input(pristine, layer), dispatched(pristine, layer, list_type, False))
    found = combined(layer, rows, weigh=True)

    assert worst_error(found, unclamped) < TOLERANCE
    assert (worst_error(found, layer.routed) > 0.1) == (layer.activation == "swiglustep")


# --- how the cards exchange tokens ---


def all_gather(ascend: Ascend, monkeypatch: pytest.MonkeyPatch, *, top_k: int, local: int) -> Any:
    """The real dispatcher with ``local`` of the experts; its two operators by their documentation."""
    module = ascend.dispatcher
    monkeypatch.setattr(module.DeviceOperator, "npu_moe_init_routing", staticmethod(init_routing))
    monkeypatch.setattr(module.torch_npu, "npu_moe_token_unpermute", token_unpermute, raising=False)
    return module.TokenDispatcherWithAllGather(top_k=top_k, num_local_experts=local)


def init_routing(
    hidden_states: torch.Tensor, topk_ids: torch.Tensor, *, active_expert_range: list[int], **options: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
    """``npu_moe_init_routing_v2``: rows sorted by expert, where each choice's row went, and sizes.

    Choices of experts elsewhere went to -1. They come last, and what their rows hold is not said: NaN.
    """
    assert (options["expert_tokens_num_type"], options["quant_mode"]) == (1, -1)
    first, last = active_expert_range
    chosen = topk_ids.flatten().long()
    here = (first <= chosen) & (chosen < last)
    order = chosen.where(here, torch.tensor(last)).argsort(stable=True)
    rows = hidden_states[order // topk_ids.shape[1]].masked_fill(~here[order, None], torch.nan)
    places = order.argsort().where(here, torch.tensor(-1))
    return rows, places.to(torch.int32), torch.bincount(chosen[here] - first, minlength=last - first), None


def token_unpermute(
    *, permuted_tokens: torch.Tensor, sorted_indices: torch.Tensor, probs: torch.Tensor
) -> torch.Tensor:
    """``npu_moe_token_unpermute``: each token's rows, weighed, in one."""
    rows = permuted_tokens[sorted_indices.long()].unflatten(0, (len(probs), -1))
    return (rows * probs[..., None]).sum(dim=1)


def test_all_gathers_dispatcher_and_the_patched_file_compute_the_layer(
    patched: Ascend, layer: Layer, monkeypatch: pytest.MonkeyPatch, note: Callable[[str], None]
) -> None:
    dispatcher = all_gather(patched, monkeypatch, top_k=layer.experts.shape[1], local=len(layer.w1))
    experts = experts_input(patched, layer)

    out = dispatcher.token_dispatch(patched.args.build_token_dispatch_input(fused_experts_input=experts))
    found = dispatcher.token_combine(apply(patched, experts, out), out.combine_metadata)

    error = worst_error(found, layer.routed)
    note(f"vllm-ascend and reference, layer {layer.index}, {layer.activation}: {error:.1e} of the largest")
    assert (out.group_list_type, out.topk_scales) == (1, None)
    assert error < TOLERANCE


def test_two_ranks_with_half_of_the_experts_each_compute_the_layer_together(
    patched: Ascend, layer: Layer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under ``--enable-expert-parallel``: what the ranks add up is what one would have computed."""
    half = len(layer.w1) // 2
    dispatcher = all_gather(patched, monkeypatch, top_k=layer.experts.shape[1], local=half)
    found = torch.zeros_like(layer.x)
    for rank in range(2):
        monkeypatch.setattr(patched.dispatcher, "get_ep_group", lambda rank=rank: Rank(rank))
        mine = slice(rank * half, (rank + 1) * half)
        places = torch.full((2 * half,), -1, dtype=torch.int32)
        places[mine] = torch.arange(half, dtype=torch.int32)
        experts = experts_input(patched, layer, w1=layer.w1[mine], w2=layer.w2[mine], expert_map=places)
        out = dispatcher.token_dispatch(patched.args.build_token_dispatch_input(fused_experts_input=experts))
        found += dispatcher.token_combine(apply(patched, experts, out), out.combine_metadata)

    assert worst_error(found, layer.routed) < TOLERANCE


@dataclass(frozen=True)
class Rank:
    """All that the dispatcher asks of its group."""

    rank_in_group: int


def test_with_router_weights_on_the_input_the_rows_are_scaled_before_they_are_clamped(
    patched: Ascend, reference: Watched, layer: Layer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One expert a token; vLLM allows no more. The clamp makes this another number than weights after."""
    dispatcher = all_gather(patched, monkeypatch, top_k=1, local=len(layer.w1))
    weights, chosen = layer.weights[:, :1], layer.experts[:, :1]
    experts = experts_input(
        patched,
        layer,
        topk_weights=weights,
        topk_ids=chosen.to(torch.int32),
        apply_router_weight_on_input=True,
    )
    rows = zip(chosen, weights * layer.x, strict=True)
    expected = torch.stack([reference.expert(layer.index, int(expert), row) for expert, row in rows])

    out = dispatcher.token_dispatch(patched.args.build_token_dispatch_input(fused_experts_input=experts))
    order = chosen.flatten().argsort(stable=True)
    found = torch.empty_like(layer.x).index_copy(0, order, apply(patched, experts, out))

    assert worst_error(found, expected) < TOLERANCE


def test_mc2_hands_over_ends(patched: Ascend, layer: Layer) -> None:
    """Its own decision, by the real function; the dispatch itself is one operator of the NPU's."""
    experts = experts_input(patched, layer)
    given = patched.args.build_token_dispatch_input(fused_experts_input=experts)

    assert patched.dispatcher._get_expert_token_nums_type(given) == 0


def test_all_to_all_hands_over_sizes(patched: Ascend) -> None:
    """Read, not run: its dispatcher counts with ``torch.histc`` of integers, which no CPU has."""
    source = Path(patched.dispatcher.__file__).read_text("utf-8")
    all_to_all = source.split("class TokenDispatcherWithAll2AllV")[1]

    assert re.findall(r"group_list_type=(\w+)", all_to_all) == ["1"]


def test_no_dispatcher_sets_scales_between_the_products(patched: Ascend) -> None:
    assert "topk_scales" not in Path(patched.dispatcher.__file__).read_text("utf-8")
