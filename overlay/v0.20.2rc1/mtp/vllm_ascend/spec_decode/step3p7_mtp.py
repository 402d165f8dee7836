# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The step3p7 patch kit contributors
"""Step-3.7's own draft layers on an NPU: where `Step3p7Drafter` meets vllm-ascend.

The draft layers run eagerly; the model's own step may be a captured graph.
"""

from contextlib import AbstractContextManager

import torch
from vllm.config import VllmConfig
from vllm.v1.attention.backends.utils import CommonAttentionMetadata
from vllm.v1.spec_decode.step3p7_mtp import Step3p7Drafter
from vllm_ascend.ascend_config import get_ascend_config
from vllm_ascend.ascend_forward_context import set_ascend_forward_context
from vllm_ascend.spec_decode.eagle_proposer import AscendEagleProposer
from vllm_ascend.utils import enable_sp, lmhead_tp_enable


class AscendStep3p7Proposer(Step3p7Drafter, AscendEagleProposer):
    def __init__(self, vllm_config: VllmConfig, device: torch.device, runner) -> None:
        super().__init__(vllm_config, device, runner=runner)
        self.use_cuda_graph = False
        refused = {
            "FlashComm (sequence parallel)": enable_sp(vllm_config),
            "finegrained_tp_config.lmhead_tensor_parallel_size": lmhead_tp_enable(),
            "enable_reduce_sample": get_ascend_config().enable_reduce_sample,
        }
        for name, on in refused.items():
            if on:
                raise ValueError(
                    f"Step-3.7 does not draft with {name}: "
                    "leave it off, or serve without --speculative-config."
                )

    def forward_context(self, attn_metadata: dict, num_tokens: int) -> AbstractContextManager:
        return set_ascend_forward_context(
            attn_metadata,
            self.vllm_config,
            num_tokens=num_tokens,
            num_actual_tokens=num_tokens,
            is_draft_model=True,
            draft_attn_metadatas=[attn_metadata],
        )

    def _propose(
        self,
        target_token_ids: torch.Tensor,
        target_positions: torch.Tensor,
        target_hidden_states: torch.Tensor,
        next_token_ids: torch.Tensor,
        token_indices_to_sample: torch.Tensor | None,
        common_attn_metadata: CommonAttentionMetadata,
        **of_no_use_here,
    ) -> torch.Tensor:
        """Called by ``NPUModelRunner.propose_draft_token_ids``."""
        return self.draft(
            target_token_ids,
            target_positions,
            target_hidden_states,
            next_token_ids,
            token_indices_to_sample,
            common_attn_metadata,
        )
