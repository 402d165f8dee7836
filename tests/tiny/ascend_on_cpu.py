# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend's real proposer, `AscendStep3p7Proposer`, driven by vLLM's model runner on a CPU.

What the set adds to vllm-ascend, and what it inherits there (how the draft is loaded, how a step's inputs
are prepared), runs as published. Stand-ins are:

- ``torch_npu``, of which nothing may matter: every name in it is a mock;
- the model runner's attributes that an NPU's has and a CPU's has not;
- the type of a buffer of positions: an NPU rotates by int32, vLLM on a CPU by int64;
- the slots in the forward context, where vLLM's attention on a CPU looks for them and an NPU's does not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import torch


class Mocked(ModuleType):
    """A module in which every name is a mock."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        mock = MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, mock)
        return mock


def import_ascend() -> None:
    """Make ``vllm_ascend`` importable in this process, after vLLM, which would look for ``torch_npu``."""
    from vllm import triton_utils

    triton_utils.HAS_TRITON = False  # the Triton here has none of the Ascend's operators
    sys.modules["torch_npu"] = Mocked("torch_npu")
    torch.npu = Mocked("torch.npu")


def hang_in() -> None:
    """In the place of `CpuStep3p7Proposer`, before an engine is made."""
    from vllm.plugins import load_general_plugins
    from vllm.v1.worker import gpu_model_runner

    load_general_plugins()
    import_ascend()
    gpu_model_runner.EagleProposer = adapted()


def adapted() -> Any:
    from vllm.forward_context import get_forward_context
    from vllm_ascend.ascend_config import init_ascend_config
    from vllm_ascend.attention.utils import AscendCommonAttentionMetadata
    from vllm_ascend.spec_decode.step3p7_mtp import AscendStep3p7Proposer

    class OnCpu(AscendStep3p7Proposer):  # type: ignore[misc]
        def __init__(self, vllm_config: Any, device: torch.device, runner: Any) -> None:
            of_an_npu = {
                "pcp_size": 1,
                "dcp_size": 1,
                "pcp_rank": 0,
                "dcp_rank": 0,
                "enable_enpu": False,
                "use_eagle": True,
                "actual_seq_lengths_q": [],
                "attn_state": None,
                "decode_token_per_req": 1,
                "_use_aclgraph": lambda: False,
                "_sync_metadata_across_dp": lambda tokens, **_: (tokens, None, None),
            }
            for name, value in of_an_npu.items():
                setattr(runner, name, value)
            init_ascend_config(vllm_config)
            super().__init__(vllm_config, device, runner)
            self.positions = self.positions.long()  # type: ignore[has-type]

        @contextmanager
        def forward_context(self, attn_metadata: Any, num_tokens: int) -> Iterator[None]:
            with super().forward_context(attn_metadata, num_tokens):
                slots = {layer: metadata.slot_mapping for layer, metadata in attn_metadata.items()}
                get_forward_context().slot_mapping = slots
                yield

        def prepare_next_token_ids_padded(
            self, sampled: Any, requests: Any, batch: Any, discarded: Any
        ) -> tuple[torch.Tensor, torch.Tensor]:
            indices = discarded[: batch.num_reqs].nonzero().flatten()
            tokens, counts = super().prepare_next_token_ids_padded(
                sampled, requests, batch, indices, len(indices)
            )
            return tokens.int(), counts.int()

        def prepare_inputs_padded(self, common: Any, *others: Any) -> tuple[Any, torch.Tensor, torch.Tensor]:
            known = {field.name: getattr(common, field.name) for field in fields(common)}
            prepared, indices, last, rejected = super().prepare_inputs_padded(
                AscendCommonAttentionMetadata(**known), *others
            )
            assert indices.tolist() == list(range(prepared.num_actual_tokens))
            return prepared, last, rejected

        def propose(self, **arguments: Any) -> torch.Tensor:
            del arguments["slot_mappings"]
            return self._propose(target_model_batch_desc=None, **arguments)

        def dummy_run(self, num_tokens: int, **_: Any) -> None:
            super().dummy_run(num_tokens, is_profile=True)

    return OnCpu
