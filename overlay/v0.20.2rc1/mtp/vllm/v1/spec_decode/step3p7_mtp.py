# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The step3p7 patch kit contributors
"""Drafting with Step-3.7's own layers, for whatever device.

A step of the model runs over a window of tokens for each request: its prompt or a part
of it, or its last token and the drafts to be judged. Draft layer k then runs over the
same windows, and so writes its part of the KV cache for every token that the model has
seen. What it is given at a position:

- the id of the token k + 1 places further on. The ids roll to the left by one place for
  each layer; the newest token, the model's own or layer k - 1's draft, takes the place
  behind the last one that was accepted.
- the hidden state at that position: of the model, or of layer k - 1.

Its draft is what its own head says at the last accepted position. Rejected tokens stay in
the window. What is written for them nobody reads: it comes after the last accepted
position, and the next window begins right there.

The draft layers lie in several KV cache groups, for the hybrid manager deals layers of
one kind out in turn. A group has a block table and slots of its own; with those of
another, a draft layer would write into blocks that belong to the model.
"""

from contextlib import AbstractContextManager
from copy import copy

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.model_loader import get_model
from vllm.model_executor.models import supports_multimodal
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.kv_cache_interface import KVCacheConfig


class Step3p7Drafter:
    """To be mixed into a proposer: ``class ...(Step3p7Drafter, <child of SpecDecodeBaseProposer>)``.

    What a device adds is `forward_context`, and a method of the name that its model runner
    calls, which hands the arguments on to `draft`.
    """

    def __init__(self, vllm_config: VllmConfig, device: torch.device, runner) -> None:
        super().__init__(vllm_config, device, runner=runner)
        self.runner = runner
        # The draft sees ids alone: an <im_patch> is a token like any other here, and
        # what the picture shows is in the hidden state.
        self.supports_mm_inputs = False

    def forward_context(self, attn_metadata: dict, num_tokens: int) -> AbstractContextManager:
        """In which the draft layers may run. ``attn_metadata``: by layer name."""
        raise NotImplementedError

    def draft(
        self,
        target_token_ids: torch.Tensor,
        target_positions: torch.Tensor,
        target_hidden_states: torch.Tensor,
        next_token_ids: torch.Tensor,
        last_indices: torch.Tensor | None,
        common: CommonAttentionMetadata,
    ) -> torch.Tensor:
        """``[requests, num_speculative_tokens]``: what each request may say next.

        Args:
            target_token_ids: ``[tokens]``, the windows of all requests, one after the other.
            target_positions: ``[tokens]``.
            target_hidden_states: ``[tokens, hidden_size]``, as they leave the model's last layer.
            next_token_ids: ``[requests]``, what the model has just said; within a prompt
                that goes on, its next token.
            last_indices: ``[requests]``, the last accepted token of each window; None: its last.
            common: of the step, for any KV cache group.
        """
        if last_indices is None:
            last_indices = common.query_start_loc[1:] - 1
        num_tokens = target_token_ids.shape[0]
        ids, hidden_states, newest = target_token_ids, target_hidden_states, next_token_ids
        drafts = []
        with self.forward_context(self.attention_metadata(common, num_tokens), num_tokens):
            for step in range(self.num_speculative_tokens):
                ids = rolled(ids, newest, last_indices)
                hidden_states = self.model(
                    input_ids=ids,
                    positions=target_positions,
                    hidden_states=hidden_states,
                    spec_step_idx=step,
                )
                logits = self.model.compute_logits(hidden_states[last_indices], spec_step_idx=step)
                newest = logits.argmax(dim=-1)
                drafts.append(newest)
        return torch.stack(drafts, dim=1)

    def attention_metadata(self, common: CommonAttentionMetadata, num_tokens: int) -> dict:
        """By layer name: the model's own of this step, with the blocks and slots of the layer's group."""
        found = {}
        for group in self.draft_attn_groups:
            table = self.runner.input_batch.block_table[group.kv_cache_group_id]
            of_group = copy(common)
            of_group.block_table_tensor = table.block_table.gpu[: common.num_reqs]
            of_group.slot_mapping = table.slot_mapping.gpu[:num_tokens]
            metadata = group.get_metadata_builder().build(0, of_group)
            found |= dict.fromkeys(group.layer_names, metadata)
        return found

    # --- in place of what a proposer does for a draft of one kind and one group ---

    def initialize_attn_backend(
        self, kv_cache_config: KVCacheConfig, kernel_block_sizes: list[int] | None = None
    ) -> None:
        """Every group that has a draft layer; the model runner has made their builders."""
        self.draft_attn_groups = [
            group
            for groups in self.runner.attn_groups
            for group in groups
            if self._draft_attn_layer_names.intersection(group.layer_names)
        ]
        self.kv_cache_gid = self.draft_attn_groups[0].kv_cache_group_id
        # Nothing is drafted at a position beyond the window, so there is always room.
        # Else, as soon as one request nears the greatest length, no request's window
        # would be drafted over, and the draft layers' KV cache would have a hole there.
        self.runner.effective_drafter_max_model_len = (
            self.runner.max_model_len + self.num_speculative_tokens
        )

    def load_model(self, target_model: nn.Module) -> None:
        if supports_multimodal(target_model):
            # By this name the proposers look for it, and need it for nothing here.
            target_model.config.image_token_index = target_model.config.image_token_id
        super().load_model(target_model)

    def _get_model(self) -> nn.Module:
        """The draft layers, built from the draft's configuration: the model's has no entries for them."""
        vllm_config = copy(self.vllm_config)
        vllm_config.model_config = self.draft_model_config
        return get_model(vllm_config=vllm_config, model_config=self.draft_model_config)

    def _maybe_share_lm_head(self, model: nn.Module) -> None:
        """Never: each draft layer brings a head of its own."""


def rolled(ids: torch.Tensor, newest: torch.Tensor, last_indices: torch.Tensor) -> torch.Tensor:
    """Every id one place to the left; ``newest`` behind what was the last accepted one."""
    ids = ids.roll(-1)
    ids[last_indices] = newest.to(ids.dtype)
    return ids
