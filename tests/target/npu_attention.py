# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the attention operators of ``torch_npu``, as vllm-ascend's attention class calls them.

Where the semantics come from: Ascend's pages of ``torch_npu.npu_fused_infer_attention_score``
and of its second version, layout ``TND``.

Lengths
    ``actual_seq_lengths`` are the cumulative ends of the queries. ``actual_seq_lengths_kv`` are
    cumulative ends too where keys lie side by side, and each request's own length where a
    ``block_table`` says in which blocks of the cache they are.
``sparse_mode``
    0 without a mask: all sees all. 3, rightDownCausal: the last query of a request sees all of
    its keys, each one before it one less; ``pre_tokens`` and ``next_tokens`` are ignored. 4, band:
    with the same alignment a query at position i sees the key at j where
    ``-next_tokens <= i - j <= pre_tokens``. Modes 3 and 4 take the triangle of 2048 x 2048.

That a band shows ``pre_tokens`` keys *and* the token's own is what the tests of the sibling
``npu_fusion_attention`` say; the pages of this operator show it in no words. It is the one
assumption of all that is proved with this file.

Everything is computed in float32 and rounded once. Keys that nothing may see are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from target.npu_rules import calls, model, require

TRIANGLE = 2048
INT_MAX = 2147483647


@dataclass(frozen=True)
class Band:
    """Which keys a query may see."""

    sparse_mode: int
    pre_tokens: int
    next_tokens: int

    def visible(self, queries: int, keys: int) -> torch.Tensor:
        """``[queries, keys]``, the last query being at the last key's position."""
        require(queries <= keys or self.sparse_mode == 0, f"{queries} queries, but {keys} keys")
        distance = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)[None, :]
        if self.sparse_mode == 0:
            return torch.ones_like(distance, dtype=torch.bool)
        if self.sparse_mode == 3:
            return distance >= 0
        return (-self.next_tokens <= distance) & (distance <= self.pre_tokens)


@dataclass(frozen=True)
class Call:
    """One call, as an operator of either version got it, for a test to look at."""

    operator: str
    arguments: dict[str, Any]


seen: list[Call] = []
"""The calls of the attention operators. A test that asks clears it first."""


class FusedInferAttention:
    """An operator and its ``out`` form, which writes into tensors that are there already."""

    def __init__(self, name: str, renamed: dict[str, str]) -> None:
        self.name = name
        self._renamed = renamed

    def __call__(self, *tensors: torch.Tensor, **arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        given = dict(zip(("query", "key", "value"), tensors, strict=False)) | arguments
        self._note(given)
        return self._attend(given), torch.empty(1)

    def out(self, *, out: Sequence[torch.Tensor], workspace: torch.Tensor, **arguments: Any) -> None:
        require(isinstance(workspace, torch.Tensor), "no workspace")
        self._note(arguments)
        out[0].copy_(self._attend(arguments).view_as(out[0]))

    def workspace(self, **arguments: Any) -> torch.Tensor:
        """As much as the operator asks for: nothing, here. It is asked with the arguments of the call."""
        self._attend(arguments)
        return torch.empty(0)

    def _note(self, arguments: dict[str, Any]) -> None:
        calls.append(self.name)
        seen.append(Call(self.name, arguments))

    def _attend(self, arguments: dict[str, Any]) -> torch.Tensor:
        given = {self._renamed.get(name, name): value for name, value in arguments.items()}
        return attend(**given)


npu_fused_infer_attention_score = FusedInferAttention("npu_fused_infer_attention_score", {})
npu_fused_infer_attention_score_v2 = FusedInferAttention(
    "npu_fused_infer_attention_score_v2",
    {
        "num_query_heads": "num_heads",
        "softmax_scale": "scale",
        "actual_seq_qlen": "actual_seq_lengths",
        "actual_seq_kvlen": "actual_seq_lengths_kv",
    },
)


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    num_heads: int,
    num_key_value_heads: int,
    scale: float,
    input_layout: str,
    actual_seq_lengths: Sequence[int] | torch.Tensor,
    actual_seq_lengths_kv: Sequence[int] | torch.Tensor,
    atten_mask: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    block_size: int = 0,
    sparse_mode: int = 0,
    pre_tokens: int = INT_MAX,
    next_tokens: int = INT_MAX,
    learnable_sink: torch.Tensor | None = None,
    **others: object,
) -> torch.Tensor:
    """Attention of several requests.

    Args:
        query: ``[T, num_heads, D]``.
        key: ``[T, num_key_value_heads, D]``; with a ``block_table``
            ``[blocks, block_size, num_key_value_heads * D]``.
        value: like ``key``.
        num_heads: a multiple of ``num_key_value_heads``.
        num_key_value_heads: heads of keys and values.
        scale: of the products of queries and keys.
        input_layout: ``TND``.
        actual_seq_lengths: cumulative ends of the queries.
        actual_seq_lengths_kv: cumulative ends, or lengths with a ``block_table``.
        atten_mask: the triangle, or None with ``sparse_mode`` 0.
        block_table: ``[requests, blocks of one]``, or None.
        block_size: keys in a block; ignored without a ``block_table``.
        sparse_mode: 0, 3 or 4.
        pre_tokens: how far a token sees back, in mode 4.
        next_tokens: how far it sees on, in mode 4.
        learnable_sink: ``[num_heads]`` scores of a key without a value, or None.
        others: not modelled.

    Returns:
        ``[T, num_heads, D]`` of the dtype of ``query``; NaN behind the last request.
    """
    model(not others, f"the arguments {sorted(others)}")
    model(input_layout == "TND", f"the layout {input_layout}")
    model(sparse_mode in {0, 3, 4}, f"sparse_mode {sparse_mode}")
    require((atten_mask is None) == (sparse_mode == 0), f"sparse_mode {sparse_mode} with this mask")
    require(atten_mask is None or is_triangle(atten_mask), "the mask is not the triangle")
    require(query.shape[1] == num_heads and num_heads % num_key_value_heads == 0, "the heads do not fit")
    ends = [0, *map(int, actual_seq_lengths)]
    lengths = list(map(int, actual_seq_lengths_kv))
    require(len(lengths) == len(ends) - 1 and ends == sorted(ends) and ends[-1] <= len(query), f"ends {ends}")
    band = Band(sparse_mode, pre_tokens, next_tokens)
    shape = (-1, num_key_value_heads, query.shape[2])
    places = keys_of_each(lengths, block_table, block_size)
    result = torch.full_like(query, torch.nan)
    for (start, end), keys in zip(pairwise(ends), places, strict=True):
        if start == end:
            continue
        visible = band.visible(end - start, len(keys))
        read = visible.any(dim=0)
        mine = keys[read]
        result[start:end] = one_request(
            query[start:end].float(),
            key.reshape(shape)[mine].float(),
            value.reshape(shape)[mine].float(),
            visible[:, read],
            scale,
            learnable_sink,
        ).to(query.dtype)
    return result


def is_triangle(mask: torch.Tensor) -> bool:
    """What lies after a token is a one: the compressed mask of modes 3 and 4."""
    if mask.shape != (TRIANGLE, TRIANGLE) or mask.dtype not in {torch.int8, torch.uint8, torch.bool}:
        return False
    corner = mask[:4, :4].bool()
    return bool(torch.equal(corner, torch.ones_like(corner).triu(1)) and mask[0, -1] and not mask[-1, 0])


def keys_of_each(
    lengths: list[int], block_table: torch.Tensor | None, block_size: int
) -> Iterator[torch.Tensor]:
    """For each request the places of its keys among all that there are, one behind the other."""
    if block_table is None:
        for start, end in pairwise([0, *lengths]):
            yield torch.arange(start, end)
        return
    require(block_table.dtype == torch.int32 and len(block_table) >= len(lengths), "the block table")
    for blocks, length in zip(block_table.long(), lengths, strict=False):
        positions = torch.arange(length)
        yield blocks[positions // block_size] * block_size + positions % block_size


def one_request(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    visible: torch.Tensor,
    scale: float,
    sink: torch.Tensor | None,
) -> torch.Tensor:
    """``[Q, N, D]`` of ``[Q, N, D]`` and twice ``[K, M, D]``; ``visible`` is ``[Q, K]``."""
    model(bool(visible.any(dim=1).all()), "a query that sees nothing")
    shared = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(shared, dim=1) for tensor in (key, value))
    scores = torch.einsum("qnd,knd->nqk", query, key) * scale
    scores = scores.masked_fill(~visible, -torch.inf)
    if sink is not None:
        column = sink.float()[:, None, None].expand(-1, len(query), 1)
        scores = torch.cat([scores, column], dim=-1)
    weights = scores.softmax(dim=-1)[..., : len(key)]
    return torch.einsum("nqk,knd->qnd", weights, value)


def npu_reshape_and_cache(
    *,
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_indices: torch.Tensor,
) -> None:
    """``_npu_reshape_and_cache``: each token's key and value into the slot that is its own.

    Keys are ``[T, M, D]``, caches ``[blocks, block_size, M, D]``; slots are numbered through the
    blocks, and a negative one (padding) is left out.
    """
    calls.append("_npu_reshape_and_cache")
    slots = slot_indices.long()
    kept = slots >= 0
    for new, cache in ((key, key_cache), (value, value_cache)):
        cache.view(-1, *cache.shape[2:])[slots[kept]] = new[kept].to(cache.dtype)
