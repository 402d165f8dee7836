# SPDX-License-Identifier: Apache-2.0
"""The patched, real ``moe_mlp.py`` on the CPU, through ``unified_apply_mlp`` and the real dataclasses.

Only ``torch_npu`` is stood in for. The reference is a loop over experts in float64 that
shares nothing with the file: it starts from counts of rows, not from group lists.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from patchkit import names
from target import npu_stand_in, releases
from target.comparison import same_bits
from target.real_packages import MOE_ARGS, MOE_MLP, ascend_from, write_variant
from target.wrong_variants import GUIDE_TO_THE_LETTER

HIDDEN, WIDTH = 24, 20
COUNTS = (5, 0, 9, 1, 0, 13)
"""Rows of each expert. Two experts have none, one of them in front of the last."""

# Of the largest value of the reference; a third of it or less was seen. Half precision
# rounds gate and up, their product and the sum; float32 is limited by the order of its sums.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
DTYPES = tuple(TOLERANCE)


@dataclass(frozen=True)
class Experts:
    """A MoE layer and its rows in float64, before they are rounded to the dtype of a run.

    ``x`` ``[M, HIDDEN]``, ``w1`` ``[E, HIDDEN, 2 * WIDTH]`` (gate, then up), ``w2`` ``[E, WIDTH, HIDDEN]``,
    biases ``[E, N]``, ``scales`` ``[M, 1]`` (the router's weight of each row); ``counts`` rows for each
    expert.
    """

    counts: tuple[int, ...]
    x: torch.Tensor
    w1: torch.Tensor
    w2: torch.Tensor
    b1: torch.Tensor | None = None
    b2: torch.Tensor | None = None
    scales: torch.Tensor | None = None

    def rounded(self, dtype: torch.dtype) -> Experts:
        """The same numbers as ``dtype`` holds them, in float64 again. Biases and scales stay float32."""
        return Experts(
            self.counts,
            *(tensor.to(dtype).double() for tensor in (self.x, self.w1, self.w2)),
            *(
                None if tensor is None else tensor.float().double()
                for tensor in (self.b1, self.b2, self.scales)
            ),
        )


def draw(counts: tuple[int, ...] = COUNTS, *, bias: str = "", scales: bool = False) -> Experts:
    """Random experts whose gates and ups have a standard deviation of about 8: many pass a limit of 7.

    ``bias`` "1", "2" or "12": which of the two products has one.
    """
    generator = torch.Generator().manual_seed(37)

    def normal(*shape: int, deviation: float) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * deviation

    experts = len(counts)
    return Experts(
        counts,
        x=normal(sum(counts), HIDDEN, deviation=1.0),
        w1=normal(experts, HIDDEN, 2 * WIDTH, deviation=8 / HIDDEN**0.5),
        w2=normal(experts, WIDTH, HIDDEN, deviation=1 / WIDTH**0.5),
        b1=normal(experts, 2 * WIDTH, deviation=4.0) if "1" in bias else None,
        b2=normal(experts, HIDDEN, deviation=4.0) if "2" in bias else None,
        scales=normal(sum(counts), 1, deviation=1.0).abs() if scales else None,
    )


def reference(layer: Experts, limit: float | None) -> torch.Tensor:
    """``[M, HIDDEN]`` in float64, expert by expert. ``limit`` None: plain SwiGLU, nothing clamped."""
    results = [torch.zeros(0, HIDDEN, dtype=torch.float64)]
    for expert, rows, scales in rows_by_expert(layer):
        gate, up = gate_and_up(layer, rows, expert)
        silu = gate / (1 + torch.exp(-gate))
        if limit is not None:
            silu, up = silu.clamp(max=limit), up.clamp(-limit, limit)
        result = (silu * up * scales) @ layer.w2[expert]
        results.append(result if layer.b2 is None else result + layer.b2[expert])
    return torch.cat(results)


def rows_by_expert(layer: Experts) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    scales = torch.ones(len(layer.x), 1) if layer.scales is None else layer.scales
    start = 0
    for expert, count in enumerate(layer.counts):
        mine = slice(start, start + count)
        yield expert, layer.x[mine], scales[mine].double()
        start += count


def gate_and_up(layer: Experts, rows: torch.Tensor, expert: int) -> tuple[torch.Tensor, torch.Tensor]:
    both = rows @ layer.w1[expert]
    if layer.b1 is not None:
        both = both + layer.b1[expert]
    return both[:, :WIDTH], both[:, WIDTH:]


def share_clamped(layer: Experts, limit: float) -> float:
    """The share of products of which at least one factor is clamped."""
    touched = []
    for expert, rows, _ in rows_by_expert(layer):
        gate, up = gate_and_up(layer, rows, expert)
        touched.append((gate / (1 + torch.exp(-gate)) > limit) | (up.abs() > limit))
    return float(torch.cat(touched).double().mean())


@dataclass(frozen=True)
class Ascend:
    """The real modules of one version of the package: the file under test and the dataclasses it takes."""

    mlp: Any
    args: Any

    def run(self, layer: Experts, dtype: torch.dtype, **options: Any) -> torch.Tensor:
        """``unified_apply_mlp``; the options are those of `input`."""
        output, event = self.mlp.unified_apply_mlp(mlp_compute_input=self.input(layer, dtype, **options))
        assert event is None
        result: torch.Tensor = output
        return result

    def input(
        self,
        layer: Experts,
        dtype: torch.dtype,
        *,
        list_type: int = 1,
        need_trans: bool = False,
        padding: int = 0,
        **others: Any,
    ) -> Any:
        """What the token dispatcher hands over; ``padding`` rows at the end belong to no expert."""
        weights = [layer.w1.to(dtype), layer.w2.to(dtype)]
        if need_trans:
            weights = [weight.transpose(1, 2).contiguous() for weight in weights]
        sizes = torch.tensor(layer.counts)
        fields = {
            "hidden_states": torch.cat([layer.x, torch.zeros(padding, HIDDEN)]).to(dtype),
            "group_list": sizes.cumsum(0) if list_type == 0 else sizes,
            "group_list_type": list_type,
            "dynamic_scale": None,
            "topk_scales": None if layer.scales is None else layer.scales.float(),
            "weights": self.args.MoEWeights(
                *weights,
                w1_bias=None if layer.b1 is None else layer.b1.float(),
                w2_bias=None if layer.b2 is None else layer.b2.float(),
            ),
            "quant": self.args.MoEQuantParams(),
            "fusion": False,
            "need_trans": need_trans,
        }
        return self.args.MoEMlpComputeInput(**fields | others)


def ascend(*roots: Path) -> Ascend:
    with ascend_from(*roots):
        return Ascend(import_module(MOE_MLP), import_module(MOE_ARGS))


@pytest.fixture(scope="session")
def pristine(pristine_root: Path) -> Ascend:
    return ascend(pristine_root)


@pytest.fixture(scope="session")
def patched(patched_root: Path) -> Ascend:
    return ascend(patched_root)


def as_enum(activation: str) -> Any:
    """vLLM's own name for it, which is what its MoE layers pass."""
    return import_module("vllm.model_executor.layers.fused_moe.activation").MoEActivation(activation)


def worst_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, in units of the largest expected value; infinite where a number is missing."""
    if not bool(found.isfinite().all()):
        return math.inf
    return float((found.double() - expected).abs().max() / expected.abs().max())


# --- swiglustep, unquantised ---


@pytest.mark.parametrize("scales", [False, True], ids=["unscaled", "router weight on input"])
@pytest.mark.parametrize("bias", ["", "1", "2", "12"], ids=["no bias", "bias 1", "bias 2", "both biases"])
@pytest.mark.parametrize("need_trans", [False, True], ids=["as is", "transposed"])
@pytest.mark.parametrize("list_type", [0, 1], ids=["ends", "sizes"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_swiglustep_agrees_with_the_reference_at_the_limit_of_seven(
    patched: Ascend, dtype: torch.dtype, list_type: int, need_trans: bool, bias: str, scales: bool
) -> None:
    layer = draw(bias=bias, scales=scales).rounded(dtype)
    found = patched.run(layer, dtype, activation="swiglustep", list_type=list_type, need_trans=need_trans)
    assert found.dtype == dtype
    assert worst_error(found, reference(layer, 7.0)) < TOLERANCE[dtype]


@pytest.mark.parametrize("limit", [7.0, 3.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_inputs_are_such_that_the_clamp_decides(dtype: torch.dtype, limit: float) -> None:
    """Else a wrong limit, or none at all, would be within the tolerance of the tests around this one."""
    layer = draw().rounded(dtype)
    assert 0.3 < share_clamped(layer, limit) < 0.9
    assert worst_error(reference(layer, None), reference(layer, limit)) > 20 * TOLERANCE[dtype]
    assert worst_error(reference(layer, 7.0), reference(layer, 3.0)) > 20 * TOLERANCE[dtype]


@pytest.mark.parametrize(
    ("passed", "means"), [(3.0, 3.0), (3, 3.0), (7, 7.0), (0, 7.0), (0.0, 7.0), (-1, 7.0)]
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_limit_that_is_passed_counts_and_none_means_seven(
    patched: Ascend, dtype: torch.dtype, passed: float, means: float
) -> None:
    layer = draw().rounded(dtype)
    found = patched.run(layer, dtype, activation="swiglustep", swiglu_limit=passed)
    assert worst_error(found, reference(layer, means)) < TOLERANCE[dtype]


@pytest.mark.parametrize("limit", [0, 3.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_enum_of_vllm_gives_what_the_string_gives(
    patched: Ascend, dtype: torch.dtype, limit: float
) -> None:
    layer = draw(scales=True)
    by_string = patched.run(layer, dtype, activation="swiglustep", swiglu_limit=limit)
    by_enum = patched.run(layer, dtype, activation=as_enum("swiglustep"), swiglu_limit=limit)
    assert same_bits(by_enum, by_string)


@pytest.mark.parametrize("counts", [(0, 0, 4), (4, 0, 0), (0, 1, 0), (2, 2, 2), (3,)], ids=str)
@pytest.mark.parametrize("list_type", [0, 1], ids=["ends", "sizes"])
def test_experts_without_rows_are_passed_over(
    patched: Ascend, list_type: int, counts: tuple[int, ...]
) -> None:
    layer = draw(counts).rounded(torch.float32)
    found = patched.run(layer, torch.float32, activation="swiglustep", list_type=list_type)
    assert worst_error(found, reference(layer, 7.0)) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("list_type", [0, 1], ids=["ends", "sizes"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_tokens_give_no_rows(patched: Ascend, dtype: torch.dtype, list_type: int) -> None:
    layer = draw((0, 0, 0), bias="12", scales=True)
    found = patched.run(layer, dtype, activation="swiglustep", list_type=list_type)
    assert (found.shape, found.dtype) == ((0, HIDDEN), dtype)


@pytest.mark.parametrize("list_type", [0, 1], ids=["ends", "sizes"])
def test_padding_behind_the_last_group_leaves_the_rows_before_it_right(
    patched: Ascend, list_type: int
) -> None:
    layer = draw().rounded(torch.float32)
    found = patched.run(layer, torch.float32, activation="swiglustep", list_type=list_type, padding=5)
    rows = sum(COUNTS)
    assert found.shape == (rows + 5, HIDDEN)
    assert worst_error(found[:rows], reference(layer, 7.0)) < TOLERANCE[torch.float32]


def test_what_was_handed_over_is_as_it_was(patched: Ascend) -> None:
    given = patched.input(draw(bias="12", scales=True), torch.float16, activation="swiglustep")
    weights = given.weights
    tensors = [given.hidden_states, given.group_list, given.topk_scales, weights.w1, weights.w2]
    tensors += [weights.w1_bias, weights.w2_bias]
    before = [tensor.clone() for tensor in tensors]
    patched.mlp.unified_apply_mlp(mlp_compute_input=given)
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(tensors, before, strict=True))


def test_the_npu_multiplies_and_torch_gates(patched: Ascend) -> None:
    npu_stand_in.calls.clear()
    patched.run(draw(), torch.float16, activation="swiglustep")
    assert npu_stand_in.calls == ["npu_grouped_matmul", "npu_grouped_matmul"]


# --- what was there before ---


@pytest.mark.parametrize("limit", [0, 3.0])
@pytest.mark.parametrize("activation", ["silu", "swigluoai", "gelu"])
@pytest.mark.parametrize("named", [str, as_enum], ids=["string", "enum"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_other_activations_keep_every_bit(
    pristine: Ascend, patched: Ascend, dtype: torch.dtype, named: Any, activation: str, limit: float
) -> None:
    layer = draw(bias="12", scales=True)
    options = {"activation": named(activation), "swiglu_limit": limit, "need_trans": True}
    assert same_bits(patched.run(layer, dtype, **options), pristine.run(layer, dtype, **options))


def test_callers_of_the_unquantised_function_need_not_know_of_the_limit(
    pristine: Ascend, patched: Ascend
) -> None:
    old = list(inspect.signature(pristine.mlp.unquant_apply_mlp).parameters.values())
    new = list(inspect.signature(patched.mlp.unquant_apply_mlp).parameters.values())
    assert new[:-1] == old
    assert (new[-1].name, new[-1].default) == ("swiglu_limit", 0.0)


@pytest.mark.parametrize("named", [str, as_enum], ids=["string", "enum"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_pristine_file_computes_plain_swiglu_without_a_word(
    pristine: Ascend, dtype: torch.dtype, named: Any
) -> None:
    """Why the file is patched at all."""
    layer = draw().rounded(dtype)
    found = pristine.run(layer, dtype, activation=named("swiglustep"))
    assert same_bits(found, pristine.run(layer, dtype, activation="silu"))
    assert worst_error(found, reference(layer, None)) < TOLERANCE[dtype]
    assert worst_error(found, reference(layer, 7.0)) > 20 * TOLERANCE[dtype]


def test_field_case_the_guide_to_the_letter_stops_in_the_forward_pass(
    pristine_root: Path, patched_root: Path, tmp_path: Path
) -> None:
    root = write_variant(tmp_path, MOE_MLP, pristine_root, *GUIDE_TO_THE_LETTER)
    guide = ascend(root, patched_root)
    guide.run(draw(), torch.float32, activation="silu")
    with pytest.raises(NameError, match="'swiglu_limit' is not defined"):
        guide.run(draw(), torch.float32, activation="swiglustep")
    assert undefined_names(guide) == ["the name 'swiglu_limit' is not defined"]


def test_no_name_in_the_patched_file_is_undefined(patched: Ascend) -> None:
    assert undefined_names(patched) == []


def undefined_names(version: Ascend) -> list[str]:
    """What ``kit verify`` finds in the file without running it."""
    source = Path(version.mlp.__file__).read_bytes()
    return [problem.text for problem in names.problems(source, "moe_mlp.py")]


# --- quantised ---

NEWER = {"v0.21.0rc1": ("W4A8MXFP",), "v0.22.1rc1": ("W4A8MXFP", "W8A8FP8")}
QUANTISED = ("W8A8", "W4A8", "MXFP8", "W4A16", "MXFP4", *NEWER.get(releases.CHOSEN or "", ()))


def quantised(version: Ascend, kind: str, activation: Any) -> Any:
    """A quantised layer's input. Its weights are never read: what is tested comes before."""
    layer = draw()
    quant_type = version.args.QuantType[kind]
    mxfp = None
    if "MXFP" in kind:
        # Named, for what stands for none is asked by an enum that each version has of its own.
        mxfp = version.args._stage_params.MoEMxfpParams(weight_quant_type=torch.float8_e4m3fn)
    scale = torch.ones(len(layer.counts), 2 * WIDTH)
    weights = version.args.MoEWeights(
        w1=layer.w1.to(torch.int8), w2=layer.w2.to(torch.int8), w1_scale=scale, w2_scale=scale
    )
    quant = version.args.MoEQuantParams(quant_type=quant_type, mxfp=mxfp)
    return version.input(
        layer, torch.bfloat16, weights=weights, quant=quant, activation=activation, swiglu_limit=7
    )


def note_quantised_calls(version: Ascend, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of each call of ``quant_apply_mlp``, which returns the list of them."""
    seen: list[dict[str, Any]] = []

    def record(**arguments: Any) -> list[dict[str, Any]]:
        seen.append(arguments)
        return seen

    monkeypatch.setattr(version.mlp, "quant_apply_mlp", record)
    return seen


def test_the_kinds_of_quantisation_are_all_here(patched: Ascend) -> None:
    assert {kind.name for kind in patched.args.QuantType} == {"NONE", *QUANTISED}


@pytest.mark.parametrize("named", [str, as_enum], ids=["string", "enum"])
@pytest.mark.parametrize("kind", QUANTISED)
def test_swiglustep_with_quantised_experts_is_refused_before_anything_runs(
    patched: Ascend, monkeypatch: pytest.MonkeyPatch, kind: str, named: Any
) -> None:
    given = quantised(patched, kind, named("swiglustep"))
    rows = given.hidden_states.clone()
    reached = note_quantised_calls(patched, monkeypatch)
    npu_stand_in.calls.clear()
    with pytest.raises(
        NotImplementedError, match=r"Quantised MoE experts .*'swiglustep' are not supported"
    ) as refusal:
        patched.mlp.unified_apply_mlp(mlp_compute_input=given)
    assert "bfloat16 checkpoint" in str(refusal.value)
    assert (reached, npu_stand_in.calls) == ([], [])
    assert torch.equal(given.hidden_states, rows)


@pytest.mark.parametrize("named", [str, as_enum], ids=["string", "enum"])
@pytest.mark.parametrize("kind", QUANTISED)
def test_the_pristine_file_hands_swiglustep_to_a_function_that_does_not_know_of_it(
    pristine: Ascend, monkeypatch: pytest.MonkeyPatch, kind: str, named: Any
) -> None:
    """Why it is refused."""
    seen = note_quantised_calls(pristine, monkeypatch)
    pristine.mlp.unified_apply_mlp(mlp_compute_input=quantised(pristine, kind, named("swiglustep")))
    assert len(seen) == 1
    assert "activation" not in seen[0]


@pytest.mark.parametrize("activation", ["silu", "swigluoai"])
@pytest.mark.parametrize("named", [str, as_enum], ids=["string", "enum"])
@pytest.mark.parametrize("kind", QUANTISED)
def test_other_activations_with_quantised_experts_go_where_they_went(
    pristine: Ascend, patched: Ascend, monkeypatch: pytest.MonkeyPatch, kind: str, named: Any, activation: str
) -> None:
    given = quantised(patched, kind, named(activation))
    before, after = (note_quantised_calls(version, monkeypatch) for version in (pristine, patched))
    assert pristine.mlp.unified_apply_mlp(mlp_compute_input=given) is before
    assert patched.mlp.unified_apply_mlp(mlp_compute_input=given) is after
    assert [by_name(call) for call in before] == [by_name(call) for call in after]
    assert after[0]["hidden_states"] is given.hidden_states


def by_name(call: dict[str, Any]) -> dict[str, Any]:
    """Each version of the package has enums of its own; they are the same where their names are."""
    return {key: value.name if isinstance(value, Enum) else value for key, value in call.items()}
