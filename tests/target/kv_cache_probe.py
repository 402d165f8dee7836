# SPDX-License-Identifier: Apache-2.0
"""Run inside the target: what vLLM itself makes of KV cache, weights and pictures.

One JSON object in, one out on the last line of stdout.
"""

from __future__ import annotations

import json
import logging
import sys
from types import SimpleNamespace
from typing import Any


def main() -> None:
    question = json.load(sys.stdin)
    answer = {
        "pools": [pool(**case) for case in question["pools"]],
        "pictures": [picture_tokens(*size) for size in question["pictures"]],
        "engine": engine(**question["engine"]),
        # Last: these need the process group that the engine has made.
        "weights": [parameter_bytes(question["published"], **case) for case in question["weights"]],
    }
    print("\n" + json.dumps(answer))


def engine(folder: str, **options: Any) -> dict[str, Any]:
    """A real engine with random weights: the bytes of its parameters, its pool, and what it logs of it."""
    from vllm import LLM
    from vllm.model_executor.models.step3p7 import Step3p7ForConditionalGeneration as Model
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    from target import vllm_half_engine

    vllm_half_engine.prepare()
    sizes: list[int] = []
    build = Model.__init__

    def watching(self: Any, *, vllm_config: Any, prefix: str = "") -> None:
        build(self, vllm_config=vllm_config, prefix=prefix)
        sizes.append(sum(value.numel() * value.element_size() for value in self.parameters()))

    Model.__init__ = watching
    logged = Lines()
    logging.getLogger("vllm").addHandler(logged)
    llm = LLM(
        folder,
        trust_remote_code=True,
        load_format="dummy",
        dtype="bfloat16",
        enforce_eager=True,
        distributed_executor_backend=UniProcExecutor,
        skip_mm_profiling=True,
        **options,
    )
    config = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_config
    return {
        "parameter_bytes": sizes[-1],
        "blocks": config.num_blocks,
        "pool_bytes": sum(tensor.size for tensor in config.kv_cache_tensors),
        "groups": [
            [type(group.kv_cache_spec).__name__, len(group.layer_names)] for group in config.kv_cache_groups
        ],
        "log": [line for line in logged.lines if "KV cache size" in line or "Maximum concurrency" in line],
    }


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def parameter_bytes(folder: str, cards: int, vision: str) -> int:
    """Bytes of the parameters of one rank of ``cards``: vLLM's own layers, built without memory.

    The process group has one rank and says that it has more, which is all that the layers ask it.
    """
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import get_tp_group
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.models.step3p7 import Step3p7ForConditionalGeneration as Model
    from vllm.utils.torch_utils import set_default_torch_dtype

    config = EngineArgs(
        folder,
        trust_remote_code=True,
        load_format="dummy",
        dtype="bfloat16",
        enforce_eager=True,
        mm_encoder_tp_mode=vision,
    ).create_engine_config()
    group = get_tp_group()
    group.world_size = cards
    try:
        with set_current_vllm_config(config), set_default_torch_dtype(torch.bfloat16), torch.device("meta"):
            model = Model(vllm_config=config)
    finally:
        group.world_size = 1
    return sum(value.numel() * value.element_size() for value in model.parameters())


def pool(
    full: int,
    sliding: int,
    window: int,
    kv_heads: int,
    head_dim: int,
    size: int,
    context: int,
    batch: int,
    hybrid: bool,
) -> dict[str, Any]:
    """The pool that vLLM's own functions lay out in ``size`` bytes for these layers on one card."""
    import torch
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    config: Any = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=context, original_max_model_len=context),
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=batch, disable_hybrid_kv_cache_manager=not hybrid
        ),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1, prefill_context_parallel_size=1),
        cache_config=SimpleNamespace(num_gpu_blocks_override=None),
        speculative_config=None,
    )
    shape = {"block_size": 128, "num_kv_heads": kv_heads, "head_size": head_dim, "dtype": torch.bfloat16}
    layers: dict[str, Any] = {f"full.{layer}": FullAttentionSpec(**shape) for layer in range(full)}
    for layer in range(sliding):
        layers[f"sliding.{layer}"] = SlidingWindowSpec(**shape, sliding_window=window)
    [found] = kv_cache_utils.get_kv_cache_configs(config, [layers], [size])
    concurrency = kv_cache_utils.get_max_concurrency_for_kv_cache_config(config, found)
    return {
        "blocks": found.num_blocks,
        "groups": sorted(len(group.layer_names) for group in found.kv_cache_groups),
        "concurrency": concurrency,
        "tokens": int(concurrency * context),
    }


def picture_tokens(width: int, height: int) -> int:
    from vllm.transformers_utils.processors.step3_vl import Step3VLImageProcessor

    return int(Step3VLImageProcessor().get_num_image_tokens(width, height))


if __name__ == "__main__":
    main()
