# SPDX-License-Identifier: Apache-2.0
"""The drafting of the opt-in set ``mtp``, hung into vLLM's own model runner on a CPU. Never part of the kit.

On an NPU vllm-ascend has a model runner, a proposer and a ``hf_config_override`` of its own, and the
set hangs `Step3p7Drafter` into those. What is here does the same for vLLM's, so that the class runs on
a CPU as it ships. Like `step3p7_sandbox_moe`, it is in memory alone and off unless asked for.

Three gaps of vLLM 0.20.2 on a CPU are filled besides; an NPU has kernels of its own for them:

1. The stand-ins for the rejection sampler's kernels lack the two arguments of its synthetic mode.
2. That of ``expand_kernel`` writes into a copy where the values are not int64; temperatures are not.
3. From a batch of 8 on, top-k and top-p go to a Triton kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch


def register() -> None:
    """Hang it in, where the set is applied. May be called more than once."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    try:
        from vllm.v1.spec_decode.step3p7_mtp import Step3p7Drafter
    except ModuleNotFoundError:
        return  # the base set alone
    from vllm.config.speculative import SpeculativeConfig
    from vllm.v1.worker import gpu_model_runner

    if hasattr(gpu_model_runner, "sandbox_drafts"):
        return
    gpu_model_runner.sandbox_drafts = True
    gpu_model_runner.EagleProposer = proposer(Step3p7Drafter, gpu_model_runner.EagleProposer)
    SpeculativeConfig.published_override = SpeculativeConfig.hf_config_override
    SpeculativeConfig.hf_config_override = staticmethod(with_draft_layers)
    fill_the_gaps()


def with_draft_layers(config: Any) -> Any:
    """``hf_config_override``; a worker process looks it up by its name."""
    from vllm.config.speculative import SpeculativeConfig
    from vllm.config.step3p7_mtp import text_config_with_draft_layers

    if config.model_type == "step3p7":
        config = text_config_with_draft_layers(config)
    return SpeculativeConfig.published_override(config)


def proposer(drafter: Any, published: Any) -> Any:
    """In place of vLLM's proposer: what `AscendStep3p7Proposer` is on an NPU."""

    class CpuStep3p7Proposer(drafter, published):  # type: ignore[misc]
        def forward_context(self, attn_metadata: Any, num_tokens: int) -> AbstractContextManager[None]:
            from vllm.forward_context import set_forward_context

            slots = {layer: metadata.slot_mapping for layer, metadata in attn_metadata.items()}
            return set_forward_context(  # type: ignore[no-any-return]
                attn_metadata, self.vllm_config, num_tokens=num_tokens, slot_mapping=slots
            )

        def propose(
            self,
            target_token_ids: torch.Tensor,
            target_positions: torch.Tensor,
            target_hidden_states: torch.Tensor,
            next_token_ids: torch.Tensor,
            token_indices_to_sample: torch.Tensor | None,
            common_attn_metadata: Any,
            **_: Any,
        ) -> torch.Tensor:
            return self.draft(
                target_token_ids,
                target_positions,
                target_hidden_states,
                next_token_ids,
                token_indices_to_sample,
                common_attn_metadata,
            )

    return CpuStep3p7Proposer


def fill_the_gaps() -> None:
    from vllm.utils import cpu_triton_utils
    from vllm.v1.sample.ops import topk_topp_sampler

    topk_topp_sampler.HAS_TRITON = False
    cpu_triton_utils.expand_kernel.func = expand
    for kernel in (
        cpu_triton_utils.rejection_greedy_sample_kernel,
        cpu_triton_utils.rejection_random_sample_kernel,
    ):
        kernel.func = without_synthetic_mode(kernel.func)


def without_synthetic_mode(kernel: Callable[..., None]) -> Callable[..., None]:
    """The last two positional arguments are the synthetic mode's in the one, the last in the other."""

    def call(*arguments: Any, **options: Any) -> None:
        if options.pop("SYNTHETIC_MODE"):
            raise NotImplementedError("rejection_sample_method synthetic, on a CPU")
        kernel(*arguments[: 11 if options else 7], **options)

    return call


def expand(
    output: torch.Tensor,
    values: torch.Tensor,
    ends: torch.Tensor,
    replace_from: int,
    replace_to: int,
    **_: int,
) -> None:
    """``values[i]`` for every token of request i; one value is replaced by another."""
    sizes = torch.diff(ends, prepend=ends.new_zeros(1))
    replaced = values.where(values != replace_from, replace_to)
    output.copy_(replaced.repeat_interleave(sizes))
