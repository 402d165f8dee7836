# SPDX-License-Identifier: Apache-2.0
"""The stand-in for ``torch_npu`` itself, on numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from target import npu_stand_in

X = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
WEIGHT = torch.tensor(
    [
        [[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]],
        [[9.0, 9.0, 9.0], [9.0, 9.0, 9.0]],
        [[2.0, 0.0, 0.0], [0.0, 2.0, 1.0]],
    ]
)
BIAS = torch.tensor([[0.5, 0.0, 0.0], [7.0, 7.0, 7.0], [0.0, 0.0, 0.25]])
PRODUCTS = [[1.0, 2.0, 3.0], [3.0, 4.0, 7.0], [10.0, 12.0, 6.0]]
PRODUCTS_AND_BIAS = [[1.5, 2.0, 3.0], [3.5, 4.0, 7.0], [10.0, 12.0, 6.25]]
GROUPS: dict[str, Any] = {
    "split_item": 2,
    "group_type": 0,
    "group_list": torch.tensor([2, 0, 1]),
    "group_list_type": 1,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("list_type", "groups"), [(1, [2, 0, 1]), (0, [2, 2, 3])], ids=["sizes", "ends"])
@pytest.mark.parametrize(
    ("bias", "expected"), [(None, PRODUCTS), ([BIAS], PRODUCTS_AND_BIAS)], ids=["plain", "bias"]
)
def test_each_group_of_rows_meets_its_own_matrix(
    dtype: torch.dtype,
    list_type: int,
    groups: list[int],
    bias: list[torch.Tensor] | None,
    expected: list[list[float]],
) -> None:
    chosen = GROUPS | {"group_list": torch.tensor(groups), "group_list_type": list_type, "bias": bias}
    [found] = npu_stand_in.npu_grouped_matmul([X.to(dtype)], [WEIGHT.to(dtype)], **chosen)
    assert found.dtype == dtype
    assert found.tolist() == expected


def test_a_transposed_weight_is_read_as_what_it_shows() -> None:
    stored = WEIGHT.transpose(1, 2).contiguous()
    [found] = npu_stand_in.npu_grouped_matmul([X], [stored.transpose(1, 2)], **GROUPS)
    assert found.tolist() == PRODUCTS


def test_rows_behind_the_last_group_are_not_numbers() -> None:
    [found] = npu_stand_in.npu_grouped_matmul(
        [X], [WEIGHT], **GROUPS | {"group_list": torch.tensor([1, 0, 1])}
    )
    assert found.isnan().all(dim=1).tolist() == [False, False, True]


def test_half_precision_accumulates_in_float32_and_rounds_once() -> None:
    x = torch.tensor([[2048.0, 1.0, 1.0, -2048.0]], dtype=torch.float16)
    weight = torch.ones(1, 4, 1, dtype=torch.float16)
    [found] = npu_stand_in.npu_grouped_matmul([x], [weight], **GROUPS | {"group_list": torch.tensor([1])})
    assert found.tolist() == [[2.0]]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"split_item": 0}, "split_item 0"),
        ({"split_item": 3}, "split_item 3"),
        ({"group_type": -1}, "group_type -1"),
        ({"group_list_type": 2}, "group_list_type 2"),
        ({"output_dtype": torch.int32}, "output_dtype"),
        ({"antiquant_scale": None}, "antiquant_scale"),
        ({"x": [X, X]}, "x as anything but a list of one tensor"),
        ({"x": [X.long()]}, "x of torch.int64"),
        ({"x": [X.half()]}, "x of torch.float16 with a weight of torch.float32"),
        ({"bias": [BIAS.half()]}, "bias that is not float32"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_modelled_raises(change: dict[str, Any], named: str) -> None:
    arguments = {"x": [X], "weight": [WEIGHT]} | GROUPS | change
    with pytest.raises(npu_stand_in.NotModelled, match=named):
        npu_stand_in.npu_grouped_matmul(**arguments)


@pytest.mark.parametrize(
    "change",
    [
        {"group_list": torch.tensor([2, 0, 2])},
        {"group_list": torch.tensor([2, 1])},
        {"group_list": torch.tensor([2, -1, 1])},
        {"group_list": torch.tensor([2, 0, 1], dtype=torch.int32)},
        {"group_list": torch.tensor([2, 1, 3]), "group_list_type": 0},
        {"group_list": None},
        {"x": [X.T]},
        {"x": [X.T.contiguous().T]},
        {"bias": [BIAS[:2]]},
    ],
    ids=[
        "too many rows",
        "too few groups",
        "negative",
        "int32",
        "falling",
        "none",
        "x misfits",
        "x strided",
        "bias misfits",
    ],
)
def test_what_the_documentation_rules_out_raises(change: dict[str, Any]) -> None:
    arguments = {"x": [X], "weight": [WEIGHT]} | GROUPS | change
    with pytest.raises(ValueError, match=r"group_list|does not fit|strides"):
        npu_stand_in.npu_grouped_matmul(**arguments)


def test_swiglu_gates_with_the_first_half() -> None:
    found = npu_stand_in.npu_swiglu(torch.tensor([[1.0, -2.0, 10.0, 100.0]]))
    assert found.tolist() == [pytest.approx([7.310586, -23.840584], rel=1e-6)]


def test_every_call_is_noted() -> None:
    npu_stand_in.calls.clear()
    npu_stand_in.npu_grouped_matmul([X], [WEIGHT], **GROUPS)
    npu_stand_in.npu_swiglu(X[:, :2].contiguous())
    assert npu_stand_in.calls == ["npu_grouped_matmul", "npu_swiglu"]


def test_there_is_no_device() -> None:
    assert not npu_stand_in.npu.is_available()
