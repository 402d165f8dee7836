# SPDX-License-Identifier: Apache-2.0
"""Run inside the target: a real vLLM engine in this process, on the CPU.

Three things that vLLM 0.20.2 lacks on a CPU and has on an NPU are filled in, in memory
alone: the model class itself is as it lies on the disk.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

Message = dict[str, Any]

WITHOUT_TOKEN_HANDLING = "Step3p7WithoutTokenHandling"


def answers_of(
    folder: str, tower_mode: str, conversations: dict[str, list[Message]], tokens: int
) -> dict[str, Any]:
    """Start an engine on a model folder, talk to it, and leave it.

    "parameters": name and content (float32, base64) of each right after loading, before
    vLLM packs them for its kernels; NaN where nothing was loaded. "replies": for each
    conversation the ids of the prompt, the greedy tokens, and for each of these the logits
    of the whole vocabulary.
    """
    from vllm import LLM
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    loaded = prepare()
    llm = LLM(
        folder,
        trust_remote_code=True,
        enforce_eager=True,
        dtype="float32",
        max_model_len=4096,
        max_num_batched_tokens=4096,
        max_num_seqs=2,
        kv_cache_memory_bytes=32 << 20,
        distributed_executor_backend=UniProcExecutor,
        mm_encoder_tp_mode=tower_mode,
        skip_mm_profiling=True,
        enable_prefix_caching=False,
        logprobs_mode="raw_logits",
        max_logprobs=-1,
        seed=0,
    )
    parameters = {name: base64.b64encode(content).decode() for name, content in loaded.items()}
    replies = {name: reply(llm, conversation, tokens) for name, conversation in conversations.items()}
    return {"parameters": parameters, "replies": replies}


def reply(llm: Any, conversation: list[Message], tokens: int) -> dict[str, Any]:
    from vllm import SamplingParams

    greedy = SamplingParams(max_tokens=tokens, temperature=0, logprobs=-1, ignore_eos=True)
    [answer] = llm.chat(conversation, greedy, use_tqdm=False)
    [completion] = answer.outputs
    logits = [[step[token].logprob for token in sorted(step)] for step in completion.logprobs]
    return {"prompt": answer.prompt_token_ids, "tokens": list(completion.token_ids), "logits": logits}


@lru_cache
def prepare() -> dict[str, bytes]:
    """Once in a process: fill in what the CPU lacks. Answers the parameters as last loaded."""
    from vllm.model_executor.models import ModelRegistry
    from vllm.model_executor.models.step3p7 import Step3p7ForConditionalGeneration

    fill_in_experts()
    fill_in_projector()
    watched: dict[str, bytes] = {}
    watch_loading(Step3p7ForConditionalGeneration, watched)
    without = {"configure_mm_token_handling": lambda *_arguments: None}
    model = type(WITHOUT_TOKEN_HANDLING, (Step3p7ForConditionalGeneration,), without)
    ModelRegistry.register_model(WITHOUT_TOKEN_HANDLING, model)
    return watched


def watch_loading(model: Any, watched: dict[str, bytes]) -> None:
    load_weights = model.load_weights

    def watching(self: Any, weights: Iterable[tuple[str, Any]]) -> Any:
        for parameter in self.parameters():
            parameter.data.fill_(float("nan"))
        names = load_weights(self, weights)
        watched.clear()
        watched.update({name: value.detach().numpy().tobytes() for name, value in self.named_parameters()})
        return names

    model.load_weights = watching


def fill_in_experts() -> None:
    """Routing by sigmoid with a bias (the CPU has it for grouped experts alone), and a plain SiLU."""
    import torch
    from vllm.model_executor.layers.fused_moe import cpu_fused_moe
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation

    def select_experts(router_logits: Any, top_k: int, **options: Any) -> tuple[Any, Any]:
        scores = torch.sigmoid(router_logits.float())
        chosen = (scores + options["e_score_correction_bias"]).topk(top_k, dim=-1).indices
        weights = scores.gather(-1, chosen)
        weights = weights / weights.sum(dim=-1, keepdim=True) * options["routed_scaling_factor"]
        return weights, chosen.to(torch.int32)

    def silu_and_mul(x: Any) -> Any:
        gate, up = x.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up

    cpu_fused_moe.select_experts = select_experts
    cpu_fused_moe._CPU_MOE_ACT_FN[MoEActivation.SILU] = silu_and_mul


def fill_in_projector() -> None:
    """The tower hands its features over transposed; the CPU's matrix product takes whole rows alone."""
    from vllm import _custom_ops

    product = _custom_ops.onednn_mm
    _custom_ops.onednn_mm = lambda handler, x, bias: product(handler, x.contiguous(), bias)
