# SPDX-License-Identifier: Apache-2.0
"""The patched, real ``swiglustep_and_mul`` against the formula in double precision.

The reference is written here in Python's own floats (IEEE double) and the ``math``
module: no tensor operator takes part in it. Errors are in ulps of the output's dtype.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from target import npu_stand_in
from target.comparison import same_bits
from target.real_packages import ACTIVATION, load, write_variant
from target.wrong_variants import CLAMP_BEFORE_SILU, WRONG_ACTIVATIONS

Activation = Callable[[torch.Tensor, float], torch.Tensor]

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

# The largest error allowed, in ulps. Half precision: silu is rounded once (half an ulp, up
# to a whole one of the product, as the two may lie in different octaves) and the product
# once; the last hundredth is float32's, in which silu is computed. float32 adds torch's own
# exp and division: 1.94 was seen, and other processors take other paths through torch.
MAX_ULPS = {torch.float32: 4.0, torch.float16: 1.51, torch.bfloat16: 1.51}

# The absolute error of silu alone where it all but vanishes: below -88.7 float32's exp(-gate)
# overflows and silu is -0 instead of -2.6e-37 at the most; bfloat16 is computed in float32;
# float16 rounds to multiples of 2**-24 there. It is multiplied by up, which is at most limit.
VANISHING = {torch.float32: 2.7e-37, torch.bfloat16: 2.7e-37, torch.float16: 2.0**-25}

# All are exact in each of the dtypes. The model's own limit alone would not tell every fault:
# silu(7) rounds to 7 in bfloat16, and a clamp of the gate from below acts under 0.2785 only.
LIMITS = (7.0, 3.0, 16.0, 0.125)


@pytest.fixture(scope="session")
def swiglustep(patched_root: Path) -> Activation:
    function: Activation = load(ACTIVATION, patched_root).swiglustep_and_mul
    return function


def exact(gate: float, up: float, limit: float) -> float:
    """min(silu(gate), limit) * clip(up, -limit, limit), with silu(g) = g / (1 + exp(-g))."""
    silu = gate / (1 + math.exp(-gate)) if gate >= 0 else gate * math.exp(gate) / (1 + math.exp(gate))
    return min(silu, limit) * min(max(up, -limit), limit)


def ulp(value: float, dtype: torch.dtype) -> float:
    """The distance of neighbouring numbers of ``dtype`` in the octave of ``value``."""
    info = torch.finfo(dtype)
    magnitude = max(abs(value), info.smallest_normal)
    return math.ldexp(info.eps, math.frexp(magnitude)[1] - 1)


def worst_error(activation: Activation, x: torch.Tensor, limit: float) -> float:
    """The largest error on ``x``, in ulps of its dtype; infinite where ``activation`` gives no number."""
    found = activation(x, limit).flatten().tolist()
    gate, up = (half.flatten().tolist() for half in x.chunk(2, dim=-1))
    expected = [exact(g, u, limit) for g, u in zip(gate, up, strict=True)]
    return max(error_in_ulps(f, e, limit, x.dtype) for f, e in zip(found, expected, strict=True))


def error_in_ulps(found: float, expected: float, limit: float, dtype: torch.dtype) -> float:
    if not math.isfinite(found):
        return math.inf
    error = abs(found - expected) - limit * VANISHING[dtype]
    return max(error, 0.0) / ulp(expected, dtype)


def inputs(limit: float, dtype: torch.dtype) -> torch.Tensor:
    """Gates and ups on both sides of every place where the function bends, and at random in between."""
    draw = random.Random(37)
    gates = [0.0, -0.0, limit, -limit, limit * 1.001, limit * 0.999, -1.278, 88.0, -88.0, -89.0, -104.0]
    gates += [1e-3, -1e-3, 1000.0, -1000.0, 65504.0, -65504.0]
    gates += [draw.uniform(-3 * limit, 3 * limit) for _ in range(400)]
    gates += [draw.uniform(-30, 30) for _ in range(400)]
    ups = [draw.choice([limit, -limit, 2 * limit, draw.uniform(-2 * limit, 2 * limit)]) for _ in gates]
    return torch.tensor([*gates, *ups], dtype=dtype)


# --- the numbers ---


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_agrees_with_the_formula_to_a_few_ulps(
    swiglustep: Activation, dtype: torch.dtype, limit: float
) -> None:
    error = worst_error(swiglustep, inputs(limit, dtype), limit)
    assert error <= MAX_ULPS[dtype], f"{error:.2f} ulps of {dtype} at limit {limit}"


@pytest.mark.parametrize("variant", WRONG_ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_wrong_variant_of_the_real_file_does_not_agree(
    patched_root: Path, tmp_path: Path, dtype: torch.dtype, variant: str
) -> None:
    wrong = wrong_activation(tmp_path, patched_root, variant)
    errors = [worst_error(wrong, inputs(limit, dtype), limit) for limit in LIMITS]
    assert max(errors) > 2 * MAX_ULPS[dtype]


def wrong_activation(folder: Path, patched_root: Path, variant: str) -> Activation:
    root = write_variant(folder, ACTIVATION, patched_root, WRONG_ACTIVATIONS[variant])
    function: Activation = load(ACTIVATION, root, patched_root).swiglustep_and_mul
    return function


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("limit", "expected"), [(7.0, [49.0, 0.0, 0.36553, -49.0]), (3.0, [9.0, 0.0, 0.36553, -9.0])]
)
def test_field_case_clamp_order(
    swiglustep: Activation, dtype: torch.dtype, limit: float, expected: list[float]
) -> None:
    x = torch.tensor([100, -100, 1, 300, 100, -100, 0.5, -300], dtype=dtype)
    found = swiglustep(x, limit).tolist()
    assert found[0] == expected[0]
    assert abs(found[1]) < 1e-30
    assert found[2] == pytest.approx(expected[2], rel=2 * torch.finfo(dtype).eps + 1e-5)
    assert found[3] == expected[3]


def test_field_case_clamp_before_silu_would_give_other_numbers(patched_root: Path, tmp_path: Path) -> None:
    wrong = wrong_activation(tmp_path, patched_root, CLAMP_BEFORE_SILU)
    found = wrong(torch.tensor([100.0, 300.0, 100.0, -300.0]), 7.0).tolist()
    assert found == pytest.approx([48.955, -48.955], abs=1e-3)


def test_field_case_the_unclamped_product_overflows_in_float16(swiglustep: Activation) -> None:
    x = torch.tensor([300, -300], dtype=torch.float16)
    assert npu_stand_in.npu_swiglu(x).tolist() == [-math.inf]
    assert swiglustep(x, 7.0).tolist() == [-49.0]


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gives_the_bits_of_vllms_own_operator(
    swiglustep: Activation, dtype: torch.dtype, limit: float
) -> None:
    special = [
        [math.inf, 1.0, -1.0, math.nan, 1.0, -math.inf],
        [1.0, math.inf, -math.inf, 1.0, math.nan, 1.0],
    ]
    pairs = torch.cat([inputs(limit, dtype).reshape(2, -1), torch.tensor(special, dtype=dtype)], dim=1)
    x = pairs.flatten()
    assert same_bits(swiglustep(x, limit), vllms_own(limit)(x))


def vllms_own(limit: float) -> Callable[[torch.Tensor], torch.Tensor]:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.activation import SwigluStepAndMul

    with set_current_vllm_config(VllmConfig()):
        operator: Callable[[torch.Tensor], torch.Tensor] = SwigluStepAndMul(limit).forward_native
    return operator


def test_the_limit_is_seven_where_none_is_given(patched_root: Path) -> None:
    function = load(ACTIVATION, patched_root).swiglustep_and_mul
    assert function(torch.tensor([1000.0, 1000.0])).tolist() == [49.0]


# --- shape, dtype, device ---


@pytest.mark.parametrize("shape", [(8,), (5, 8), (2, 3, 8), (2, 1, 3, 4), (0, 8), (3, 0), (4, 2)], ids=str)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_halves_the_last_dimension_and_keeps_the_rest(
    swiglustep: Activation, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    x = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape).sub(11).to(dtype)
    found = swiglustep(x, 7.0)
    assert found.shape == (*shape[:-1], shape[-1] // 2)
    assert found.dtype == dtype
    rows = x.reshape(-1, shape[-1]).tolist() if x.numel() else []
    expected = [exact(g, u, 7.0) for row in rows for g, u in _halves(row)]
    assert found.flatten().tolist() == pytest.approx(expected, rel=2 * torch.finfo(dtype).eps, abs=1e-7)


def _halves(row: list[float]) -> Iterable[tuple[float, float]]:
    middle = len(row) // 2
    return zip(row[:middle], row[middle:], strict=True)


def test_stays_on_the_device_of_its_input(swiglustep: Activation) -> None:
    assert swiglustep(torch.empty(4, 6, device="cpu"), 7.0).device.type == "cpu"
    on_meta = swiglustep(torch.empty(4, 6, device="meta", dtype=torch.bfloat16), 7.0)
    assert (on_meta.device.type, on_meta.shape, on_meta.dtype) == ("meta", (4, 3), torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_view_that_is_not_contiguous_is_read_as_what_it_shows(
    swiglustep: Activation, dtype: torch.dtype
) -> None:
    wide = torch.randn(6, 5, 16, generator=torch.Generator().manual_seed(37)).mul(9).to(dtype)
    for view in (wide.transpose(0, 1), wide[..., ::2], wide[:, 1::2, 2:12], wide.permute(2, 1, 0)):
        assert not view.is_contiguous()
        assert worst_error(swiglustep, view, 7.0) <= MAX_ULPS[dtype]


def test_the_result_is_contiguous_as_the_next_operator_requires(swiglustep: Activation) -> None:
    assert swiglustep(torch.randn(5, 8), 7.0).is_contiguous()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_leaves_its_input_alone(swiglustep: Activation, dtype: torch.dtype) -> None:
    x = torch.tensor([100, -100, 1, 300, 100, -100, 0.5, -300], dtype=dtype)
    before = x.clone()
    found = swiglustep(x, 3.0)
    found.zero_()
    assert same_bits(x, before)


# --- what is not a number, and what does not fit ---


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("half", ["gate", "up"])
def test_a_nan_stays_a_nan_and_touches_no_other_element(
    swiglustep: Activation, dtype: torch.dtype, half: str
) -> None:
    x = torch.tensor([[100.0, 2.0, -3.0, 4.0, -5.0, 60.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]], dtype=dtype)
    clean = swiglustep(x, 7.0)
    x[0, 1 if half == "gate" else 4] = torch.nan
    found = swiglustep(x, 7.0)
    assert found.isnan().tolist() == [[False, True, False], [False, False, False]]
    found[0, 1] = clean[0, 1]
    assert same_bits(found, clean)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_infinite_factor_is_clamped_like_a_large_one(swiglustep: Activation, dtype: torch.dtype) -> None:
    x = torch.tensor([math.inf, math.inf, 100, 100, math.inf, -math.inf, math.inf, -math.inf], dtype=dtype)
    assert swiglustep(x, 7.0).tolist() == [49.0, -49.0, 49.0, -49.0]


@pytest.mark.parametrize("shape", [(7,), (4, 3), (2, 2, 1), (0, 5)], ids=str)
def test_an_odd_last_dimension_is_refused_by_its_shape(
    swiglustep: Activation, shape: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match="even last dimension") as refusal:
        swiglustep(torch.zeros(shape), 7.0)
    assert str(shape) in str(refusal.value)


def test_a_tensor_without_dimensions_is_refused_by_its_shape(swiglustep: Activation) -> None:
    with pytest.raises(ValueError, match=r"even last dimension .*got \(\)"):
        swiglustep(torch.tensor(1.0), 7.0)


@pytest.mark.parametrize("limit", [0, 0.0, -0.0, -7.0, math.inf, -math.inf, math.nan])
def test_a_limit_that_is_not_positive_and_finite_is_refused_by_its_value(
    swiglustep: Activation, limit: float
) -> None:
    with pytest.raises(ValueError, match="positive, finite limit") as refusal:
        swiglustep(torch.zeros(2, 4), limit)
    assert str(refusal.value).endswith(f"got {limit}.")


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.int32, torch.int64, torch.uint8, torch.bool, torch.complex64], ids=str
)
def test_a_dtype_that_is_not_floating_point_is_refused_by_its_name(
    swiglustep: Activation, dtype: torch.dtype
) -> None:
    with pytest.raises(ValueError, match="floating-point") as refusal:
        swiglustep(torch.zeros(2, 4, dtype=dtype), 7.0)
    assert str(dtype) in str(refusal.value)


# --- what holds for all inputs ---

halves = st.lists(
    st.tuples(
        st.floats(width=16, allow_nan=False, allow_infinity=False), st.floats(width=16, allow_nan=False)
    ),
    min_size=1,
    max_size=32,
)
eighths = st.integers(min_value=1, max_value=8 * 31).map(lambda n: n / 8)
dtypes = st.sampled_from(DTYPES)


def as_input(pairs: list[tuple[float, float]], dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([gate for gate, _ in pairs] + [up for _, up in pairs], dtype=dtype)


@settings(max_examples=100, deadline=None)
@given(pairs=halves, limit=eighths, dtype=dtypes)
def test_no_result_leaves_the_bounds(
    swiglustep: Activation, pairs: list[tuple[float, float]], limit: float, dtype: torch.dtype
) -> None:
    """At most limit * limit; of a negative gate at most 0.2785 * limit, since silu is never below -0.2785."""
    found = swiglustep(as_input(pairs, dtype), limit).tolist()
    bound = max(limit, 0.2785) * limit * (1 + torch.finfo(dtype).eps)
    assert all(abs(value) <= bound for value in found)


@settings(max_examples=100, deadline=None)
@given(pairs=halves, limit=eighths, dtype=dtypes)
def test_the_sign_of_up_is_the_only_thing_that_its_sign_changes(
    swiglustep: Activation, pairs: list[tuple[float, float]], limit: float, dtype: torch.dtype
) -> None:
    found = swiglustep(as_input(pairs, dtype), limit)
    mirrored = swiglustep(as_input([(gate, -up) for gate, up in pairs], dtype), limit)
    assert same_bits(mirrored, -found)


@settings(max_examples=100, deadline=None)
@given(pairs=halves, limits=st.tuples(eighths, eighths).map(sorted), dtype=dtypes)
def test_a_larger_limit_never_makes_a_result_smaller(
    swiglustep: Activation, pairs: list[tuple[float, float]], limits: list[float], dtype: torch.dtype
) -> None:
    x = as_input(pairs, dtype)
    tight, wide = (swiglustep(x, limit).abs() for limit in limits)
    assert bool((tight <= wide).all())


@settings(max_examples=100, deadline=None)
@given(
    pairs=st.lists(
        st.tuples(st.floats(-60, 60, width=16), st.floats(-60, 60, width=16)), min_size=1, max_size=32
    ),
    limit=eighths,
    dtype=dtypes,
)
def test_agrees_with_the_formula_on_whatever_is_drawn(
    swiglustep: Activation, pairs: list[tuple[float, float]], limit: float, dtype: torch.dtype
) -> None:
    assert worst_error(swiglustep, as_input(pairs, dtype), limit) <= MAX_ULPS[dtype]
