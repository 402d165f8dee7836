# SPDX-License-Identifier: Apache-2.0
"""A stand-in for ``torch_npu`` on the CPU: the operators of the MoE, exactly; `npu_attention` has the others.

Where the semantics come from (Ascend's public operator documentation):

``npu_grouped_matmul``
    "aclnnGroupedMatmulV4" and the page of ``torch_npu.npu_grouped_matmul``. Unquantised:
    ``y_i = x_i @ weight_i + bias_i``. ``split_item`` 0 and 1 return one tensor a weight, 2
    and 3 return one tensor in all. ``group_type`` 0 groups the rows of x; with one x
    ``[M, K]``, one weight ``[E, K, N]`` and one bias ``[E, N]`` it needs ``split_item`` 2
    or 3 and a ``group_list`` of E int64. ``group_list_type`` 0: the list holds cumulative
    end offsets, never falling; 1: the size of each group. A weight may be a transposed
    view, x may not. The list is to end with the last row (Atlas A2), or not behind it
    (later chips); what rows behind the last group hold is not said, though a padded
    dispatch has such rows. Here they are NaN, so that no test can come to rely on them.
``npu_swiglu``
    Its page: ``swish(A) * B`` with A the first and B the second half along ``dim``, the
    dtype of the input kept; tensors that are empty or not contiguous are not supported.

How it rounds: float16 and bfloat16 are widened to float32, products accumulate there, the
bias is added there, and the result is rounded once to the dtype of x. float32 accumulates
in float32 (a device that is allowed HF32 is coarser). For ``npu_swiglu`` the documentation
gives the formula alone; it is computed in float32 here and rounded once.

The bias is float32 for every dtype of x, as vllm-ascend passes it. (The documentation has
that for bfloat16 and float32; for float16 on an Atlas A2 it names a float16 bias.)

Whatever else the real package has is absent here, and what these functions do not model
raises `NotModelled`: a test cannot pass by a default.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from types import ModuleType, SimpleNamespace

import torch

from target.npu_attention import (
    npu_fused_infer_attention_score,
    npu_fused_infer_attention_score_v2,
    npu_reshape_and_cache,
)
from target.npu_rules import NotModelled, calls
from target.npu_rules import model as _model
from target.npu_rules import require as _require

__all__ = [
    "NotModelled",
    "calls",
    "npu",
    "npu_fused_infer_attention_score",
    "npu_fused_infer_attention_score_v2",
    "npu_grouped_matmul",
    "npu_swiglu",
]

FLOATS = (torch.float16, torch.bfloat16, torch.float32)

_npu_reshape_and_cache = npu_reshape_and_cache
_npu_fused_infer_attention_score_get_max_workspace = npu_fused_infer_attention_score.workspace
_npu_fused_infer_attention_score_v2_get_max_workspace = npu_fused_infer_attention_score_v2.workspace
_C = SimpleNamespace(_weak_ref_tensor=lambda tensor: tensor, _NPUTaskGroupHandle=object)


def npu_grouped_matmul(
    x: Sequence[torch.Tensor],
    weight: Sequence[torch.Tensor],
    *,
    bias: Sequence[torch.Tensor] | None = None,
    group_list: torch.Tensor | None = None,
    split_item: int = 0,
    group_type: int = -1,
    group_list_type: int = 0,
    **others: object,
) -> list[torch.Tensor]:
    """One matrix product for each group of rows.

    Args:
        x: one tensor ``[M, K]``, contiguous.
        weight: one tensor ``[E, K, N]``, of the dtype of x.
        bias: one float32 tensor ``[E, N]``, or None.
        group_list: ``[E]`` int64; cumulative ends or sizes, as ``group_list_type`` says.
        split_item: 2.
        group_type: 0.
        group_list_type: 0 or 1.
        others: not modelled.

    Returns:
        One tensor ``[M, N]`` of the dtype of x; NaN behind the last group.
    """
    calls.append("npu_grouped_matmul")
    rows, matrices = _only(x, "x"), _only(weight, "weight")
    offsets = None if bias is None else _only(bias, "bias")
    _model(not others, f"the arguments {sorted(others)}")
    _model(split_item == 2, f"split_item {split_item}")
    _model(group_type == 0, f"group_type {group_type}")
    _model(rows.dtype in FLOATS, f"x of {rows.dtype}")
    _model(rows.dtype == matrices.dtype, f"x of {rows.dtype} with a weight of {matrices.dtype}")
    _model(offsets is None or offsets.dtype == torch.float32, "a bias that is not float32")
    _require(rows.dim() == 2 and rows.is_contiguous(), f"x is {tuple(rows.shape)}, strides {rows.stride()}")
    _require(matrices.dim() == 3, f"weight is {tuple(matrices.shape)}")
    experts, inner, width = matrices.shape
    _require(rows.shape[1] == inner, f"x {tuple(rows.shape)} does not fit weight {tuple(matrices.shape)}")
    _require(offsets is None or offsets.shape == (experts, width), "the bias does not fit the weight")
    ends = _group_ends(group_list, group_list_type, experts, rows.shape[0])

    result = torch.full((rows.shape[0], width), torch.nan, dtype=rows.dtype)
    for expert, (start, end) in enumerate(pairwise([0, *ends])):
        product = rows[start:end].float() @ matrices[expert].float()
        if offsets is not None:
            product += offsets[expert]
        result[start:end] = product.to(rows.dtype)
    return [result]


def npu_swiglu(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """``silu`` of the first half times the second: ``[..., 2 * d]`` to ``[..., d]``."""
    calls.append("npu_swiglu")
    _model(x.dtype in FLOATS, f"npu_swiglu of {x.dtype}")
    _model(dim == -1, f"npu_swiglu along dim {dim}")
    _require(x.shape[-1] % 2 == 0, f"npu_swiglu of an odd {tuple(x.shape)}")
    _require(x.is_contiguous() and x.numel() > 0, f"npu_swiglu of {tuple(x.shape)}, strides {x.stride()}")
    gate, up = x.float().chunk(2, dim=-1)
    return (gate * torch.sigmoid(gate) * up).to(x.dtype)


class Event:
    """An event of a stream that has always finished."""

    def wait(self, _stream: Stream) -> None:
        """Nothing to wait for."""

    def reset(self, _stream: Stream) -> None:
        """Nothing to forget."""

    def record(self, _stream: Stream | None = None) -> None:
        """Nothing to note."""


class Stream:
    def record_event(self) -> Event:
        return Event()


class Graph:
    """A captured graph. Nothing is captured here: what is called runs at once."""


@contextmanager
def _on(_stream: Stream) -> Iterator[None]:
    """``torch.npu.stream``."""
    yield


def _torch_npu_namespace() -> ModuleType:
    """What importing ``torch_npu`` adds to torch as ``torch.npu``: no device, and a stream to record on.

    A group of tasks is what a captured graph may be given other arguments for, before it runs again.
    """
    namespace = ModuleType("torch.npu")
    members = {
        "is_available": lambda: False,
        "current_stream": Stream,
        "stream": _on,
        "Stream": Stream,
        "Event": Event,
        "ExternalEvent": Event,
        "NPUGraph": Graph,
        "graph_task_group_begin": lambda _stream: None,
        "graph_task_group_end": lambda _stream: object(),
        "graph_task_update_begin": lambda _stream, _handle: None,
        "graph_task_update_end": lambda _stream: None,
    }
    vars(namespace).update(members)
    return namespace


npu = _torch_npu_namespace()


def _group_ends(group_list: torch.Tensor | None, list_type: int, experts: int, rows: int) -> list[int]:
    if group_list is None:
        raise ValueError("group_type 0 needs a group_list")
    _require(group_list.dtype == torch.int64, f"group_list is {group_list.dtype}")
    _require(group_list.shape == (experts,), f"group_list is {tuple(group_list.shape)} for {experts} experts")
    _model(list_type in (0, 1), f"group_list_type {list_type}")
    values: list[int] = group_list.tolist()
    ends = values if list_type == 0 else list(accumulate(values))
    rising = all(start <= end for start, end in pairwise([0, *ends]))
    _require(rising and ends[-1] <= rows, f"group_list {values} does not divide {rows} rows")
    return ends


def _only(tensors: Sequence[torch.Tensor], name: str) -> torch.Tensor:
    _model(isinstance(tensors, list) and len(tensors) == 1, f"{name} as anything but a list of one tensor")
    return tensors[0]
