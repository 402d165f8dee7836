# SPDX-License-Identifier: Apache-2.0
"""Run by the target's own interpreter: do the five files work once they are imported?

Arguments: the file to write the answer to, and an empty folder for the tokenizer of
the trial. The answer is a JSON list of {"check", "status", "detail"}, with status
"passed", "failed" or "not run". A check first imports the unpatched neighbours of
what it is about: where those fail already, it was not run, and says why.
"""

import importlib
import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

ARCHITECTURE = "Step3p7ForConditionalGeneration"
SAMPLE = "你好，世界！ two  spaces\nand a new line"


class NotRun(Exception):
    """The check needs something that this machine or installation does not have."""


def need(*modules: str) -> None:
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:
            raise NotRun(f"{module} cannot be imported here ({first_line(error)})") from error


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


def without_plugin() -> str:
    """What a reader of "passed" must know about the vLLM that was imported."""
    return ", the Ascend plugin left out" if os.environ.get("VLLM_PLUGINS") == "" else ""


def model_class() -> str:
    """The registry knows the architecture, as a multimodal one, and its module imports."""
    model = load_model_class()
    from vllm.model_executor.models import registry
    from vllm.model_executor.models.interfaces import supports_multimodal

    if ARCHITECTURE not in registry._MULTIMODAL_MODELS:
        raise AssertionError(f"{ARCHITECTURE} is registered, but not as a multimodal model")
    if not supports_multimodal(model):
        raise AssertionError(f"{model.__module__} is not a multimodal model")
    return f"{model.__name__}, multimodal{without_plugin()}"


def load_model_class() -> Any:
    need("vllm.model_executor.models.step_vl")
    from vllm.model_executor.models import registry

    entry = registry.ModelRegistry.models.get(ARCHITECTURE)
    if entry is None:
        raise AssertionError(f"{ARCHITECTURE} is not registered")
    try:
        return entry.load_model_cls()
    except Exception as error:
        raise AssertionError(f"registered, but its module fails to import: {first_line(error)}") from error


def router_bias() -> str:
    """The model, built on a parent that has rounded its router's bias, as vllm-ascend's layer does."""
    model = load_model_class()
    import torch

    def build_rounded(self: Any, **_: object) -> None:
        torch.nn.Module.__init__(self)
        self.moe = torch.nn.Module()
        rounded = torch.zeros(2, dtype=torch.bfloat16)
        self.moe.router_bias = torch.nn.Parameter(rounded, requires_grad=False)

    config = SimpleNamespace(
        model_config=SimpleNamespace(
            hf_config=SimpleNamespace(text_config=SimpleNamespace(vocab_size=2), image_token_id=1)
        ),
        compilation_config=SimpleNamespace(cudagraph_mm_encoder=False),  # asked from vLLM 0.22 on
    )
    with patch.object(model.__base__, "__init__", build_rounded):
        built = model(vllm_config=config)
    found = built.moe.router_bias.dtype
    if found != torch.float32:
        raise AssertionError(f"{found} once the model is built: a rounded bias chooses other experts")
    return "float32 once the model is built, though the layer rounds it"


def tokenizer(folder: Path) -> str:
    """A byte-level BPE tokenizer under the wrong class name, as the hub has it, keeps its text."""
    need("transformers", "vllm.tokenizers.hf")
    from vllm.tokenizers.registry import get_tokenizer

    write_tokenizer(folder)
    loaded = get_tokenizer(str(folder), trust_remote_code=True)
    ids = loaded(SAMPLE, add_special_tokens=False)["input_ids"]
    if len(ids) != len(SAMPLE.encode()) or loaded.decode(ids) != SAMPLE:
        raise AssertionError(
            f"{len(SAMPLE.encode())} bytes became {len(ids)} tokens, which read {loaded.decode(ids)!r}"
        )
    if not hasattr(loaded, "max_chars_per_token"):
        raise AssertionError(f"{type(loaded).__name__} has no attribute max_chars_per_token")
    return f"{type(loaded).__name__} keeps Chinese, spaces and newlines"


def write_tokenizer(folder: Path) -> None:
    """A model folder of the least that a tokenizer needs: one token for each byte."""
    vocabulary = {character: index for index, character in enumerate(byte_characters())}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    files: dict[str, object] = {
        "tokenizer.json": {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [],
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": None,
            "decoder": byte_level,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        },
        "tokenizer_config.json": {"tokenizer_class": "LlamaTokenizerFast"},
        "config.json": {
            "model_type": "step3p7",
            "auto_map": {"AutoConfig": "configuration_step3p7.Step3p7Config"},
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), "utf-8")
    (folder / "configuration_step3p7.py").write_text(
        "from transformers import PretrainedConfig\n\n\n"
        'class Step3p7Config(PretrainedConfig):\n    model_type = "step3p7"\n',
        "utf-8",
    )


def byte_characters() -> list[str]:
    """The printable stand-ins of the 256 bytes in a byte-level vocabulary (GPT-2's table)."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + index) for index in range(len(others))]


def clamped_swiglu(gate: float, up: float, limit: float) -> float:
    """The formula in double precision: min(silu(gate), limit) * clip(up, -limit, limit)."""
    silu = gate / (1.0 + math.exp(-gate)) if gate > -700 else -0.0
    return min(silu, limit) * max(-limit, min(limit, up))


def require_close(found: list[float], expected: list[float], tolerance: float) -> None:
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        if not abs(one - other) <= tolerance * max(1.0, abs(other)):
            raise AssertionError(f"value {index} is {one}, expected {other:.6g}")


def activation() -> str:
    """swiglustep_and_mul on a few values that tell the order of clamp and silu."""
    need("torch_npu")
    import torch
    from vllm_ascend.ops.activation import swiglustep_and_mul

    gate, up = [100.0, -100.0, 1.0, 300.0], [100.0, -100.0, 0.5, -300.0]
    for limit in (7.0, 3.0):
        expected = [clamped_swiglu(g, u, limit) for g, u in zip(gate, up, strict=True)]
        found = swiglustep_and_mul(torch.tensor(gate + up, dtype=torch.float32), limit)
        require_close(found.tolist(), expected, 1e-6)
    return "right at limits 7 and 3 (float32, CPU)"


def moe_branch(device: str) -> str:
    """Two experts of the unquantised MoE, asked for swiglustep as vLLM's layer asks, against the formula."""
    import torch
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm_ascend.ops.fused_moe.moe_mlp import unified_apply_mlp
    from vllm_ascend.ops.fused_moe.moe_stage_contracts import MoEMlpComputeInput, MoEWeights
    from vllm_ascend.ops.fused_moe.moe_stage_params import MoEQuantParams

    tokens, hidden, width, limit = 32, 32, 32, 7.0
    generator = torch.Generator().manual_seed(37)

    def draw(*shape: int, scale: float) -> torch.Tensor:
        values = torch.randn(*shape, generator=generator, dtype=torch.float32) * scale
        return values.to(torch.float16).to(torch.float32)

    x, w1, w2 = (
        draw(tokens, hidden, scale=1),
        draw(2, hidden, 2 * width, scale=1),
        draw(2, width, hidden, scale=0.1),
    )
    counts = [tokens // 4, tokens - tokens // 4]
    half = torch.float16
    output, _ = unified_apply_mlp(
        mlp_compute_input=MoEMlpComputeInput(
            hidden_states=x.to(device, half),
            group_list=torch.tensor(counts, device=device),
            group_list_type=1,
            dynamic_scale=None,
            topk_scales=None,
            weights=MoEWeights(w1=w1.to(device, half), w2=w2.to(device, half)),
            quant=MoEQuantParams(),
            fusion=False,
            activation=MoEActivation.SWIGLUSTEP,
        )
    )
    expected = []
    for expert, rows in enumerate(x.split(counts)):
        gate, up = (rows @ w1[expert]).chunk(2, dim=-1)
        inner = torch.nn.functional.silu(gate).clamp(max=limit) * up.clamp(-limit, limit)
        expected.append(inner @ w2[expert])
    reference = torch.cat(expected)
    error = ((output.cpu().float() - reference).abs().max() / reference.abs().max()).item()
    if not error < 0.01:
        raise AssertionError(f"the result is off by {error:.3g} of its largest value: is the clamp ignored?")
    return f"within {error:.1e} of the formula (float16, {device})"


def moe_branch_on_npu() -> str:
    need("torch_npu")
    import torch

    if not torch.npu.is_available():
        raise NotRun("torch_npu sees no NPU here")
    return moe_branch("npu:0")


def attempt(name: str, check: Callable[[], str]) -> dict[str, str]:
    try:
        return {"check": name, "status": "passed", "detail": check()}
    except NotRun as reason:
        return {"check": name, "status": "not run", "detail": str(reason)}
    except Exception as error:
        detail = str(error) if isinstance(error, AssertionError) else first_line(error)
        return {"check": name, "status": "failed", "detail": detail}


def main() -> None:
    answer_file, folder = Path(sys.argv[1]), Path(sys.argv[2])
    try:
        importlib.import_module("torch_npu")
    except Exception:
        # The Ascend platform plugin would fail on its import, and take vLLM with it.
        os.environ["VLLM_PLUGINS"] = ""
    answers = [
        attempt("model class", model_class),
        attempt("router bias", router_bias),
        attempt("tokenizer", lambda: tokenizer(folder)),
        attempt("activation", activation),
        attempt("MoE branch", moe_branch_on_npu),
    ]
    whole = answer_file.with_suffix(".part")
    whole.write_text(json.dumps(answers), "utf-8")
    whole.replace(answer_file)


if __name__ == "__main__":
    main()
