# SPDX-License-Identifier: Apache-2.0
"""The KV cache of one card, block by block, as vLLM 0.20.2 lays it out.

Source: ``vllm/v1/core/kv_cache_utils.py`` (groups, pool) and ``vllm/v1/kv_cache_interface.py``
(``FullAttentionSpec``, ``SlidingWindowSpec``). A block holds ``block_size`` tokens of every
layer of one group; with the hybrid manager full and sliding layers are grouped apart, so a
request keeps of the sliding ones the window alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from serving.model.model_config import LayerKind, TextConfig

BLOCK_TOKENS = 128
"""Tokens in a block on an NPU: vllm-ascend sets it (``refresh_block_size``)."""

_ALMOST_EVEN = 1.5


@dataclass(frozen=True)
class Layout:
    """What decides the size of the cache; sizes in bytes are of one card.

    ``full_groups`` and ``sliding_groups`` have ``layers_in_group`` layers each, the last of a
    kind maybe filled up with none.
    """

    layer_bytes: int
    """Of one token in one layer."""
    layers_in_group: int
    full_groups: int
    sliding_groups: int
    window: int
    max_batched_tokens: int
    block_tokens: int = BLOCK_TOKENS

    @property
    def block_bytes(self) -> int:
        """One block of the pool: ``block_tokens`` tokens in each layer of a group."""
        return self.block_tokens * self.layer_bytes * self.layers_in_group

    def blocks_for(self, tokens: int) -> int:
        """Blocks that one request of ``tokens`` tokens may need at most.

        A full group: ceil(tokens / block). A sliding group: what the window and one batch cover,
        ceil(min(window - 1 + batch, tokens) / block) + 1, since a window need not start with a block.
        """
        full = _ceil_div(tokens, self.block_tokens)
        held = min(self.window - 1 + self.max_batched_tokens, tokens)
        sliding = _ceil_div(held, self.block_tokens) + 1
        return self.full_groups * full + self.sliding_groups * sliding

    def bytes_for(self, tokens: int) -> int:
        return self.blocks_for(tokens) * self.block_bytes

    def blocks_in(self, size: int) -> int:
        """Blocks that fit in so many bytes (``get_num_blocks``)."""
        return max(size // self.block_bytes, 0)

    def reported_tokens(self, blocks: int, max_model_len: int) -> int:
        """What vLLM logs as "GPU KV cache size": blocks / blocks of a longest request, times its length."""
        return int(blocks / self.blocks_for(max_model_len) * max_model_len)


def layout(
    text: TextConfig,
    tp: int,
    value_bytes: int,
    max_batched_tokens: int,
    hybrid: bool,
    block_tokens: int = BLOCK_TOKENS,
) -> Layout:
    """The layout for ``tp`` cards.

    A token takes 2 (key, value) · KV heads of the card · head_dim · ``value_bytes`` in each layer;
    with more cards than KV heads each card holds a whole head.

    Raises:
        ValueError: full and sliding layers have KV heads of other number or size, which vLLM
            lays out in a way that is not modelled here.
    """
    full, sliding = text.count(LayerKind.FULL), text.count(LayerKind.SLIDING)
    sizes = {(a.groups, a.head_dim) for kind, a in text.attention.items() if text.count(kind)}
    if len(sizes) > 1:
        raise ValueError("full and sliding layers have KV heads of different number or size")
    groups, head_dim = sizes.pop()
    layer_bytes = 2 * max(1, groups // tp) * head_dim * value_bytes
    if not hybrid or not full or not sliding:
        window_only = hybrid and not full
        in_group, full_groups, sliding_groups = full + sliding, int(not window_only), int(window_only)
    else:
        in_group = _layers_in_group(full, sliding)
        full_groups, sliding_groups = _ceil_div(full, in_group), _ceil_div(sliding, in_group)
    return Layout(
        layer_bytes=layer_bytes,
        layers_in_group=in_group,
        full_groups=full_groups,
        sliding_groups=sliding_groups,
        window=text.sliding_window,
        max_batched_tokens=max_batched_tokens,
        block_tokens=block_tokens,
    )


def _layers_in_group(full: int, sliding: int) -> int:
    """As many as the rarer kind has, or as the other has where the two are nearly even."""
    fewer, more = sorted((full, sliding))
    return more if more < _ALMOST_EVEN * fewer else fewer


def _ceil_div(number: int, by: int) -> int:
    return -(-number // by)
