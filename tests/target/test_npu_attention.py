# SPDX-License-Identifier: Apache-2.0
"""The stand-ins for the attention operators themselves, on what can be counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from target import npu_attention, npu_stand_in
from target.npu_attention import Band

TRIANGLE = torch.ones(2048, 2048).triu(1).to(torch.int8)
NEVER = 2147483647


def shown(band: Band, queries: int, keys: int) -> list[str]:
    """One line a query: x where it sees the key."""
    return ["".join("x" if seen else "." for seen in row) for row in band.visible(queries, keys).tolist()]


@pytest.mark.parametrize(
    ("band", "expected"),
    [
        (Band(4, 0, 0), ["..x..", "...x.", "....x"]),
        (Band(4, 2, 0), ["xxx..", ".xxx.", "..xxx"]),
        (Band(4, 1, 1), [".xxx.", "..xxx", "...xx"]),
        (Band(3, 0, 0), ["xxx..", "xxxx.", "xxxxx"]),
        (Band(0, 0, 0), ["xxxxx", "xxxxx", "xxxxx"]),
    ],
    ids=["itself", "two before", "one on each side", "causal ignores the band", "all"],
)
def test_the_last_query_stands_at_the_last_key(band: Band, expected: list[str]) -> None:
    assert shown(band, 3, 5) == expected


def ask(**changes: Any) -> torch.Tensor:
    """Two requests of two and one token; all scores are equal, values are 1, 2, 4."""
    values = torch.tensor([1.0, 2.0, 4.0])[:, None, None]
    given = {
        "query": torch.zeros(3, 1, 1),
        "key": torch.zeros(3, 1, 1),
        "value": values,
        "num_heads": 1,
        "num_key_value_heads": 1,
        "scale": 1.0,
        "input_layout": "TND",
        "actual_seq_lengths": [2, 3],
        "actual_seq_lengths_kv": [2, 3],
        "atten_mask": TRIANGLE,
        "sparse_mode": 3,
        "pre_tokens": NEVER,
        "next_tokens": 0,
    }
    result, _ = npu_stand_in.npu_fused_infer_attention_score(**given | changes)
    return result.flatten()


def test_each_request_sees_its_own_keys() -> None:
    assert ask().tolist() == [1.0, 1.5, 4.0]


def test_a_band_of_nothing_before_shows_each_token_itself() -> None:
    assert ask(sparse_mode=4, pre_tokens=0).tolist() == [1.0, 2.0, 4.0]


def test_with_a_block_table_lengths_are_those_of_each_request() -> None:
    cache = torch.tensor([[9.0, 9.0], [1.0, 2.0], [4.0, 9.0]])[..., None]
    found = ask(
        key=torch.zeros(3, 2, 1),
        value=cache,
        block_table=torch.tensor([[1], [2]], dtype=torch.int32),
        block_size=2,
        actual_seq_lengths_kv=[2, 1],
    )
    assert found.tolist() == [1.0, 1.5, 4.0]


def test_a_sink_takes_weight_and_gives_nothing() -> None:
    assert ask(learnable_sink=torch.zeros(1)).tolist() == pytest.approx([1 / 2, 3 / 3, 4 / 2])


def test_what_lies_behind_the_last_request_is_no_number() -> None:
    assert ask(actual_seq_lengths=[2], actual_seq_lengths_kv=[2]).isnan().tolist() == [False, False, True]


def test_out_writes_into_the_tensor_that_is_given_and_notes_the_call() -> None:
    npu_attention.seen.clear()
    output = torch.empty(3, 1, 1)
    npu_stand_in.npu_fused_infer_attention_score_v2.out(
        query=torch.zeros(3, 1, 1),
        key=torch.zeros(3, 1, 1),
        value=torch.ones(3, 1, 1),
        num_query_heads=1,
        num_key_value_heads=1,
        softmax_scale=1.0,
        input_layout="TND",
        actual_seq_qlen=[3],
        actual_seq_kvlen=[3],
        atten_mask=TRIANGLE,
        sparse_mode=3,
        workspace=torch.empty(0),
        out=[output, torch.empty(1)],
    )
    assert output.flatten().tolist() == [1.0, 1.0, 1.0]
    assert [call.operator for call in npu_attention.seen] == ["npu_fused_infer_attention_score_v2"]


@pytest.mark.parametrize(
    "change", [{"sparse_mode": 2}, {"input_layout": "BNSD"}, {"inner_precise": 1}], ids=str
)
def test_what_is_not_modelled_raises(change: dict[str, Any]) -> None:
    with pytest.raises(npu_stand_in.NotModelled):
        ask(**change)


@pytest.mark.parametrize(
    "change",
    [
        {"atten_mask": None},
        {"atten_mask": TRIANGLE.T},
        {"atten_mask": TRIANGLE[:512, :512]},
        {"actual_seq_lengths": [2, 4]},
        {"actual_seq_lengths_kv": [1, 3]},
        {"num_heads": 2},
    ],
    ids=["no mask", "turned mask", "small mask", "ends behind the rows", "fewer keys than queries", "heads"],
)
def test_what_the_documentation_rules_out_raises(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        ask(**change)
