# SPDX-License-Identifier: Apache-2.0
"""The real vLLM on a CPU with vllm-ascend's own attention class, over the stand-in of its kernel.

vLLM's scheduler, KV cache manager, block tables and model are as they are; of its CPU back end
the metadata stays, and each layer's attention is computed by ``AscendAttentionBackendImpl``, the
one that ``vllm_ascend`` on the path has, with a cache of its shape.
"""

from __future__ import annotations

from typing import Any

import torch

TRIANGLE = torch.ones(2048, 2048).triu(1).to(torch.int8)


def install(root: str) -> None:
    """From here on, the engines of this process have it. ``root`` holds ``vllm_ascend/``."""
    from pathlib import Path

    from vllm.v1.attention.backends import cpu_attn

    from target.real_packages import ATTENTION, load

    attention = load(ATTENTION, Path(root))
    cpu_attn.CPUAttentionBackend.get_kv_cache_shape = staticmethod(cache_shape)
    cpu_attn.CPUAttentionBackend.get_impl_cls = staticmethod(lambda: implementation(attention))
    cpu_attn.CPUAttentionMetadataBuilder = plain_builder(cpu_attn.CPUAttentionMetadataBuilder)


def cache_shape(blocks: int, block_size: int, heads: int, size: int, *_: Any, **__: Any) -> tuple[int, ...]:
    """Keys and values, as vllm-ascend has them."""
    return (2, blocks, block_size, heads, size)


def plain_builder(builder: Any) -> Any:
    """The CPU's metadata with all requests in one list, prompts and steps alike."""

    class Plain(builder):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.use_sdpa_prefill = False
            self._init_reorder_batch_threshold(None, False)

    return Plain


def implementation(attention: Any) -> Any:
    """vllm-ascend's class, given the metadata of a CPU."""

    class OnCpu(attention.AscendAttentionBackendImpl):  # type: ignore[misc]
        def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
            """The original asks for FlashComm2 in a configuration that only an NPU's platform makes."""

        def forward(
            self,
            layer: Any,
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            kv_cache: torch.Tensor,
            attn_metadata: Any,
            output: torch.Tensor,
            **options: Any,
        ) -> torch.Tensor:
            given = None if attn_metadata is None else translated(attention, attn_metadata)
            result: torch.Tensor = super().forward(
                layer, query, key, value, tuple(kv_cache), given, output, **options
            )
            return result

    return OnCpu


def translated(attention: Any, given: Any) -> Any:
    """What vllm-ascend's own builder says of such a step."""
    ends = given.query_start_loc[1:].tolist()
    steps_alone = ends == list(range(1, len(ends) + 1))
    state = attention.AscendAttentionState
    return attention.AscendMetadata(
        attn_mask=TRIANGLE,
        attn_state=state.DecodeOnly if steps_alone else state.ChunkedPrefill,
        num_actual_tokens=given.num_actual_tokens,
        seq_lens=given.seq_lens,
        seq_lens_list=given.seq_lens.tolist(),
        actual_seq_lengths_q=ends,
        block_tables=given.block_table,
        slot_mapping=given.slot_mapping,
        causal=given.causal,
        model_runner_type="generate",
    )
