# SPDX-License-Identifier: Apache-2.0
"""Run by the target's own interpreter: how many keys does a token see through a sliding window?

Arguments: the file to write the answer to, and an empty folder (not used). The answer is
a JSON list of {"check", "status", "detail"}, as of the kit's own probe.

vllm-ascend's attention class and the NPU's kernel are asked together. All queries and keys
are zero, so what a token sees has equal weights; the value of position j is the j-th unit
vector, so the result itself says which positions were seen.
"""

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

WINDOW = 8
TOKENS = 40
HEADS, KV_HEADS, HEAD_SIZE = 8, 1, 128
BLOCK = 128


class NotRun(Exception):
    """The check needs something that this machine or installation does not have."""


def implementation(attention: Any) -> Any:
    """One layer of vllm-ascend's attention, in a model without anything special."""
    attention.get_current_vllm_config = lambda: SimpleNamespace(kv_transfer_config=None, quant_config=None)
    attention._EXTRA_CTX = SimpleNamespace(capturing=False)
    return attention.AscendAttentionBackendImpl(
        num_heads=HEADS,
        head_size=HEAD_SIZE,
        scale=HEAD_SIZE**-0.5,
        num_kv_heads=KV_HEADS,
        alibi_slopes=None,
        sliding_window=WINDOW,
        kv_cache_dtype="auto",
        logits_soft_cap=None,
        attn_type="decoder",
        kv_sharing_target_layer_name=None,
    )


def rows(device: str, count: int, heads: int) -> Any:
    import torch

    return torch.zeros(count, heads, HEAD_SIZE, dtype=torch.float16, device=device)


def unit_vectors(device: str) -> Any:
    """The values: ``[TOKENS, KV_HEADS, HEAD_SIZE]``, a one at the position's own index."""
    import torch

    return torch.eye(TOKENS, HEAD_SIZE, dtype=torch.float16, device=device)[:, None]


def mask(device: str) -> Any:
    """The kernel's compressed triangle."""
    import torch

    return torch.ones(2048, 2048).triu(1).to(torch.int8).to(device)


def seen(result: Any) -> list[int]:
    """The positions that the last token of ``[T, HEADS, HEAD_SIZE]`` saw."""
    weights = result[-1, 0].float().cpu().tolist()
    return [position for position, weight in enumerate(weights) if weight > 0.5 / TOKENS]


def prefill(device: str) -> list[int]:
    """What the last token of a prompt sees."""
    attention = importlib.import_module("vllm_ascend.attention.attention_v1")
    metadata = attention.AscendMetadata(
        attn_mask=mask(device),
        attn_state=attention.AscendAttentionState.PrefillNoCache,
        actual_seq_lengths_q=[TOKENS],
        seq_lens_list=[TOKENS],
    )
    query, output = rows(device, TOKENS, HEADS), rows(device, TOKENS, HEADS)
    return seen(
        implementation(attention).forward_fused_infer_attention(
            query, rows(device, TOKENS, KV_HEADS), unit_vectors(device), metadata, output
        )
    )


def decode(device: str) -> list[int]:
    """What a token sees of the KV cache."""
    import torch

    attention = importlib.import_module("vllm_ascend.attention.attention_v1")
    cache = torch.zeros(2, 1, BLOCK, KV_HEADS, HEAD_SIZE, dtype=torch.float16, device=device)
    cache[1, 0, :TOKENS] = unit_vectors(device)
    metadata = attention.AscendMetadata(
        attn_mask=mask(device),
        attn_state=attention.AscendAttentionState.DecodeOnly,
        actual_seq_lengths_q=[1],
        seq_lens_list=[TOKENS],
        block_tables=torch.zeros(1, 1, dtype=torch.int32, device=device),
    )
    query, output = rows(device, 1, HEADS), rows(device, 1, HEADS)
    return seen(
        implementation(attention).forward_fused_infer_attention(query, query, query, metadata, output, cache)
    )


def width(found: list[int], device: str) -> str:
    """The sentence about a window that is as wide as it should be."""
    expected = list(range(TOKENS - WINDOW, TOKENS))
    if found != expected:
        raise AssertionError(
            f"with a window of {WINDOW} the token at {TOKENS - 1} sees the positions {spelt(found)} "
            f"instead of {spelt(expected)}: type kit revert window"
        )
    return f"a window of {WINDOW} shows exactly {WINDOW} keys (float16, {device})"


def spelt(positions: list[int]) -> str:
    if positions and positions == list(range(positions[0], positions[-1] + 1)):
        return f"{positions[0]} to {positions[-1]}"
    return ", ".join(map(str, positions)) or "none"


def on_npu(look: Callable[[str], list[int]]) -> str:
    try:
        import torch

        importlib.import_module("torch_npu")
        importlib.import_module("vllm_ascend.ascend_forward_context")
    except Exception as error:
        raise NotRun(f"vllm_ascend cannot be imported here ({first_line(error)})") from error
    if not torch.npu.is_available():
        raise NotRun("torch_npu sees no NPU here")
    return width(look("npu:0"), "npu:0")


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


def attempt(name: str, check: Callable[[], str]) -> dict[str, str]:
    try:
        return {"check": name, "status": "passed", "detail": check()}
    except NotRun as reason:
        return {"check": name, "status": "not run", "detail": str(reason)}
    except Exception as error:
        detail = str(error) if isinstance(error, AssertionError) else first_line(error)
        return {"check": name, "status": "failed", "detail": detail}


def main() -> None:
    answer_file = Path(sys.argv[1])
    answers = [
        attempt("window of a prompt", lambda: on_npu(prefill)),
        attempt("window of a decoding step", lambda: on_npu(decode)),
    ]
    whole = answer_file.with_suffix(".part")
    whole.write_text(json.dumps(answers), "utf-8")
    whole.replace(answer_file)


if __name__ == "__main__":
    main()
