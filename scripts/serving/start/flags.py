# SPDX-License-Identifier: Apache-2.0
"""Flags and variants that people bring along from other recipes, and what each does on 910B3 here.

One table, read off the sources of vLLM 0.20.2 and vllm-ascend 0.20.2rc1. A row's evidence is a
piece of text that stands in one of their files: the tests look for it there, and give each
row's example to vLLM's own parser. Nothing in it was run on an NPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any

from . import arguments as command_line
from .arguments import Given


class Verdict(Enum):
    WORKS = "works"
    NO_EFFECT = "has no effect"
    DOES_NOT_WORK = "does not work"
    NOT_TRIED = "was not tried"


class Fate(Enum):
    """What vLLM's own parser does with a row's example."""

    PARSED = "parsed"
    UNRECOGNISED = "unrecognised"


@dataclass(frozen=True)
class Evidence:
    """Where a row is from: ``text`` stands in ``file``; with ``absent`` it is that it does not."""

    file: str
    text: str
    absent: bool = False


@dataclass(frozen=True)
class Row:
    """One flag or variant. ``example`` is what follows ``vllm serve`` where this row applies."""

    title: str
    applies: Callable[[Given], bool]
    verdict: Verdict
    sentence: str
    example: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    fate: Fate = Fate.PARSED


@dataclass(frozen=True)
class Advice:
    """A row that applies to a command line. ``given`` is what it was found in."""

    given: str
    row: Row

    def __str__(self) -> str:
        return f"{self.given} {self.row.verdict.value}: {self.row.sentence}"


MODEL = "the model"
"""The flag's name that stands for the model folder, whose name may tell of a variant."""

_ON = frozenset({"true", "1", "yes", "on"})
_GPU_QUANTISERS = re.compile(
    r"fp8|mxfp[48]|modelopt\w*|nvfp4|awq\w*|gptq\w*|bitsandbytes|gguf|inc|\w*fp[48]\w*"
)
_ASCEND_QUANTISERS = frozenset({"ascend", "compressed-tensors"})
_FLOAT_KV = frozenset({"auto", "bfloat16", "float16"})

_PLATFORM = "vllm_ascend/platform.py"
_PARSER = "vllm/engine/arg_utils.py"
_SUPPORTED = Evidence(_PLATFORM, "[ASCEND_QUANTIZATION_METHOD, COMPRESSED_TENSORS_METHOD]")
_REFUSED_QUANTISER = Evidence("vllm/platforms/interface.py", "quantization is currently not supported in")
_NO_CLAMP = Evidence("vllm_ascend/ops/fused_moe/moe_mlp.py", "def quant_apply_mlp(")


def _named(*names: str) -> Callable[[Given], bool]:
    return lambda flag: flag.name in names


def _within(*names: str) -> Callable[[Given], bool]:
    """The flag itself, or a key of its JSON value."""
    return lambda flag: flag.name.partition(".")[0] in names


def _switched_on(name: str) -> Callable[[Given], bool]:
    return lambda flag: flag.name == name and flag.value.lower() in _ON


def _valued(name: str, is_meant: Callable[[str], bool]) -> Callable[[Given], bool]:
    return lambda flag: flag.name == name and is_meant(flag.value.lower())


def _model_called(pattern: str) -> Callable[[Given], bool]:
    """The last part of the model's path holds a word of this kind."""
    expression = re.compile(rf"(?i)(?<![a-z0-9])(?:{pattern})(?![a-z0-9])")
    return lambda flag: flag.name == MODEL and bool(expression.search(PurePath(flag.value).name))


def _not_there(flag: str) -> Evidence:
    return Evidence(_PARSER, f'"{flag}"', absent=True)


_UNKNOWN = "vLLM stops with 'unrecognized arguments'"
_BF16 = "serve the bfloat16 checkpoint"

TABLE = (
    # --- checkpoints --------------------------------------------------------------------
    Row(
        "an FP8 checkpoint",
        _model_called("fp8"),
        Verdict.DOES_NOT_WORK,
        "vllm-ascend takes the methods ascend and compressed-tensors alone, so vLLM stops with 'fp8 "
        f"quantization is currently not supported in npu'; {_BF16}.",
        ("/data/Step-3.7-Flash-FP8",),
        (_SUPPORTED, _REFUSED_QUANTISER),
    ),
    Row(
        "an NVFP4 checkpoint",
        _model_called("nvfp4|fp4"),
        Verdict.DOES_NOT_WORK,
        "NVFP4 is a format of NVIDIA's cards, and vLLM stops with 'modelopt_fp4 quantization is currently "
        f"not supported in npu'; {_BF16}.",
        ("/data/Step-3.7-Flash-NVFP4",),
        (_SUPPORTED, _REFUSED_QUANTISER),
    ),
    Row(
        "a W8A8, W4A8 or INT checkpoint",
        _model_called("w[48]a(?:8|16)|int[48]|awq|gptq|gguf|q[2-8]_\\w+"),
        Verdict.DOES_NOT_WORK,
        "the quantised experts of this vllm-ascend have no clamp, so the patch set refuses them in the first "
        f"forward pass instead of computing wrong numbers; {_BF16}.",
        ("/data/Step-3.7-Flash-W8A8",),
        (_NO_CLAMP,),
    ),
    # --- quantisation -------------------------------------------------------------------
    Row(
        "--quantization modelopt, fp8, awq, ...",
        _valued("--quantization", lambda value: bool(_GPU_QUANTISERS.fullmatch(value))),
        Verdict.DOES_NOT_WORK,
        "vllm-ascend takes the methods ascend and compressed-tensors alone, and vLLM stops with "
        f"'quantization is currently not supported in npu'; leave it out and {_BF16}.",
        ("--quantization", "modelopt"),
        (_SUPPORTED, _REFUSED_QUANTISER),
    ),
    Row(
        "--quantization ascend, compressed-tensors",
        _valued("--quantization", _ASCEND_QUANTISERS.__contains__),
        Verdict.DOES_NOT_WORK,
        "the quantised experts of this vllm-ascend have no clamp, and the patch set refuses them; leave it "
        f"out and {_BF16}.",
        ("--quantization", "compressed-tensors"),
        (_NO_CLAMP,),
    ),
    Row(
        "--kv-cache-dtype fp8",
        _valued("--kv-cache-dtype", lambda value: value not in _FLOAT_KV),
        Verdict.DOES_NOT_WORK,
        "it makes the cache one of single bytes, while vllm-ascend's attention scales nothing for it and "
        "writes 16-bit values; leave it out (auto), and shorten --max-model-len where memory is short.",
        ("--kv-cache-dtype", "fp8"),
        (
            Evidence("vllm/utils/torch_utils.py", '"fp8": torch.uint8'),
            Evidence("vllm_ascend/attention/attention_v1.py", "fp8", absent=True),
        ),
    ),
    Row(
        "--dtype float16",
        _valued("--dtype", {"float16", "half"}.__contains__),
        Verdict.WORKS,
        "it is what the guide measured, but activations above 65504 overflow, and answers then come empty or "
        "broken; --dtype bfloat16 is the checkpoint's own.",
        ("--dtype", "float16"),
        (Evidence("vllm/config/model.py", "ModelDType = Literal["),),
    ),
    Row(
        "--dtype float32",
        _valued("--dtype", {"float32", "float"}.__contains__),
        Verdict.DOES_NOT_WORK,
        "the weights would take 94 GiB of each card; use --dtype bfloat16.",
        ("--dtype", "float32"),
        (Evidence("vllm/config/model.py", '"float32"]'),),
    ),
    # --- speculative decoding -----------------------------------------------------------
    Row(
        "--speculative-config with mtp",
        _valued("--speculative-config.method", lambda value: "mtp" in value),
        Verdict.DOES_NOT_WORK,
        'the table of MTP models has step3p5 and not step3p7, so vLLM stops with "Unsupported speculative '
        "method: 'mtp'\"; leave it out: this release decodes one token at a time.",
        ("--speculative_config", '{"method": "mtp", "num_speculative_tokens": 1}'),
        (
            Evidence("vllm/config/speculative.py", "Unsupported speculative method"),
            Evidence("vllm_ascend/patch/platform/patch_speculative_config.py", "step3p5_mtp"),
            Evidence("vllm_ascend/patch/platform/patch_speculative_config.py", "step3p7", absent=True),
        ),
    ),
    Row(
        "--speculative-config with another method",
        _valued("--speculative-config.method", lambda value: "mtp" not in value),
        Verdict.NOT_TRIED,
        "nobody has shown that its answers stay right with this model on this release; leave it out.",
        ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}'),
        (Evidence("vllm/config/speculative.py", '"ngram"'),),
    ),
    Row(
        "--speculative-algorithm EAGLE (SGLang)",
        _named(
            "--speculative-algorithm",
            "--speculative-num-steps",
            "--speculative-eagle-topk",
            "--speculative-num-draft-tokens",
            "--speculative-draft-model-path",
        ),
        Verdict.DOES_NOT_WORK,
        f"it is SGLang's, and {_UNKNOWN}; leave it out: this release has no speculative decoding for this "
        "model.",
        ("--speculative-algorithm", "EAGLE"),
        (_not_there("--speculative-algorithm"),),
        Fate.UNRECOGNISED,
    ),
    # --- attention ----------------------------------------------------------------------
    Row(
        "--disable-cascade-attn",
        _named("--disable-cascade-attn"),
        Verdict.NO_EFFECT,
        "vllm-ascend resets it with a warning, as a feature of GPUs; leave it out.",
        ("--disable-cascade-attn",),
        (Evidence(_PLATFORM, "model_config.disable_cascade_attn = False"),),
    ),
    Row(
        "--mm-attention-backend fa4 (SGLang)",
        _named("--mm-attention-backend"),
        Verdict.DOES_NOT_WORK,
        f"it is SGLang's, and {_UNKNOWN}; leave it out: vllm-ascend has an attention of its own.",
        ("--mm-attention-backend", "fa4"),
        (_not_there("--mm-attention-backend"),),
        Fate.UNRECOGNISED,
    ),
    Row(
        "--mm-encoder-attn-backend",
        _named("--mm-encoder-attn-backend"),
        Verdict.NO_EFFECT,
        "vllm-ascend resets it with a warning and uses its own attention; leave it out.",
        ("--mm-encoder-attn-backend", "FLASH_ATTN"),
        (Evidence(_PLATFORM, "multimodal_config.mm_encoder_attn_backend = None"),),
    ),
    Row(
        "--attention-backend",
        _within("--attention-backend", "--attention-config"),
        Verdict.NO_EFFECT,
        "vllm-ascend uses its own attention backend; leave it out.",
        ("--attention-backend", "FLASHINFER"),
        (Evidence(_PLATFORM, "att_config.backend = None"),),
    ),
    # --- parallelism and speed ----------------------------------------------------------
    Row(
        "--enable-expert-parallel",
        _named("--enable-expert-parallel"),
        Verdict.WORKS,
        "the patched MoE branch serves it too; profile expert-parallel has it.",
        ("--enable-expert-parallel",),
        (Evidence("vllm_ascend/ascend_forward_context.py", "enable_expert_parallel"),),
    ),
    Row(
        "--mm-encoder-tp-mode data",
        _valued("--mm-encoder-tp-mode", "data".__eq__),
        Verdict.WORKS,
        "every card then holds the whole vision tower, 2.83 GiB more; the default, weights, divides it.",
        ("--mm-encoder-tp-mode", "data"),
        (Evidence("vllm/config/multimodal.py", "mm_encoder_tp_mode"),),
    ),
    Row(
        "--all2all-backend",
        _named("--all2all-backend"),
        Verdict.NO_EFFECT,
        "vllm-ascend overwrites it; leave it out.",
        ("--all2all-backend", "deepep_low_latency"),
        (Evidence(_PLATFORM, 'parallel_config.all2all_backend = "flashinfer_all2allv"'),),
    ),
    Row(
        "--moe-backend",
        _named("--moe-backend"),
        Verdict.NO_EFFECT,
        "vllm-ascend has an MoE of its own and reads this nowhere; leave it out.",
        ("--moe-backend", "triton"),
        (Evidence("vllm_ascend/ops/fused_moe/fused_moe.py", "moe_backend", absent=True),),
    ),
    Row(
        "--enable-dbo",
        _named("--enable-dbo", "--ubatch-size"),
        Verdict.NO_EFFECT,
        "vllm-ascend resets it with a warning; leave it out.",
        ("--enable-dbo",),
        (Evidence(_PLATFORM, "vllm_config.parallel_config.enable_dbo = False"),),
    ),
    Row(
        "--numa-bind",
        _named("--numa-bind", "--numa-bind-nodes", "--numa-bind-cpus"),
        Verdict.NO_EFFECT,
        "vllm-ascend binds its workers to cores by itself; leave it out.",
        ("--numa-bind",),
        (Evidence(_PLATFORM, 'setdefault("enable_cpu_binding", True)'),),
    ),
    Row(
        "--enforce-eager",
        _named("--enforce-eager"),
        Verdict.WORKS,
        "without captured graphs every token is slower; good for finding out whether a graph is at fault.",
        ("--enforce-eager",),
        (Evidence(_PLATFORM, "Compilation disabled, using eager mode by default"),),
    ),
    # --- --additional-config ------------------------------------------------------------
    Row(
        "weight prefetch in --additional-config",
        _switched_on("--additional-config.weight_prefetch_config.enabled"),
        Verdict.DOES_NOT_WORK,
        "it looks for the experts at model.layers[i].mlp.experts, where this model does not have them, and "
        "the first long prompt fails; leave it out.",
        ("--additional-config", '{"weight_prefetch_config": {"enabled": true}}'),
        (Evidence("vllm_ascend/ops/weight_prefetch.py", ".mlp.experts.w13_weight"),),
    ),
    Row(
        "FlashComm1 in --additional-config",
        lambda flag: any(
            _switched_on(f"--additional-config.{key}")(flag)
            for key in ("enable_flashcomm1", "enable_shared_expert_dp")
        ),
        Verdict.DOES_NOT_WORK,
        "FlashComm1 is broken for this model in this release, and enable_shared_expert_dp switches it on; "
        "leave both out.",
        ("--additional-config", '{"enable_flashcomm1": true}'),
        (
            Evidence("vllm_ascend/ascend_config.py", '"enable_flashcomm1"'),
            Evidence("vllm_ascend/utils.py", "shared_expert_dp requires enable_sp"),
        ),
    ),
    Row(
        "fused MC2 in --additional-config",
        _valued("--additional-config.enable_fused_mc2", lambda value: value not in {"0", "false"}),
        Verdict.NO_EFFECT,
        "a 910B does not use the fused operator; a 910C would, and it leaves out the clamp; leave it out.",
        ("--additional-config", '{"enable_fused_mc2": 1}'),
        (Evidence("vllm_ascend/ascend_config.py", '"enable_fused_mc2"'),),
    ),
    # --- the model ----------------------------------------------------------------------
    Row(
        "--trust-remote-code",
        _named("--trust-remote-code"),
        Verdict.WORKS,
        "it is required: transformers 5.5.3 does not know step3p7; every profile has it.",
        ("--trust-remote-code",),
        (Evidence("vllm/transformers_utils/config.py", "step3p7", absent=True),),
    ),
    Row(
        "--hf-overrides with another model_type",
        _valued("--hf-overrides.model_type", lambda value: value != "step3p7"),
        Verdict.DOES_NOT_WORK,
        "read as another type the config loses fields, and vLLM stops or computes something else; use "
        "--trust-remote-code instead.",
        ("--hf-overrides", '{"model_type": "step3_vl"}'),
        (Evidence("vllm/transformers_utils/configs/step3_vl.py", "swiglu_limits", absent=True),),
    ),
    Row(
        "--enable-lora",
        _named("--enable-lora"),
        Verdict.DOES_NOT_WORK,
        "the model has no LoRA in vLLM 0.20.2, which stops with 'does not support LoRA yet'; merge the "
        "adapter into the checkpoint.",
        ("--enable-lora",),
        (
            Evidence("vllm/v1/worker/lora_model_runner_mixin.py", "does not support LoRA yet"),
            Evidence("vllm/model_executor/models/step3_vl.py", "SupportsLoRA", absent=True),
        ),
    ),
    Row(
        "--language-model-only",
        _named("--language-model-only"),
        Verdict.WORKS,
        "for text alone: a request with a picture gets HTTP 400.",
        ("--language-model-only",),
        (Evidence("vllm/config/multimodal.py", "language_model_only"),),
    ),
    # --- parsers ------------------------------------------------------------------------
    Row(
        "--reasoning-parser of another model",
        _valued("--reasoning-parser", lambda value: value != "step3p5"),
        Verdict.DOES_NOT_WORK,
        "it looks for other marks than this model writes; use --reasoning-parser step3p5.",
        ("--reasoning-parser", "step3"),
        (Evidence("vllm/reasoning/__init__.py", '"step3p5"'),),
    ),
    Row(
        "--tool-call-parser of another model",
        _valued("--tool-call-parser", lambda value: value != "step3p5"),
        Verdict.DOES_NOT_WORK,
        "it looks for other marks than this model writes; use --tool-call-parser step3p5.",
        ("--tool-call-parser", "step3"),
        (Evidence("vllm/tool_parsers/__init__.py", '"step3p5"'),),
    ),
    # --- other programs, older releases -------------------------------------------------
    Row(
        "--model-path, --tp, --context-length, --mem-fraction-static (SGLang)",
        _named("--model-path", "--tp", "--tp-size", "--ep-size", "--context-length", "--mem-fraction-static"),
        Verdict.DOES_NOT_WORK,
        f"it is SGLang's, and {_UNKNOWN}; vLLM's names are the first word after serve, "
        "--tensor-parallel-size, --enable-expert-parallel, --max-model-len and --gpu-memory-utilization.",
        ("--tp", "8"),
        (_not_there("--tp"),),
        Fate.UNRECOGNISED,
    ),
    Row(
        "--enable-reasoning, --task, --swap-space, --rope-scaling (older vLLM)",
        _named(
            "--enable-reasoning",
            "--disable-log-requests",
            "--task",
            "--swap-space",
            "--rope-scaling",
            "--guided-decoding-backend",
            "--speculative-model",
            "--num-speculative-tokens",
        ),
        Verdict.DOES_NOT_WORK,
        f"vLLM 0.20.2 has it no more, and {_UNKNOWN}; leave it out.",
        ("--enable-reasoning",),
        (_not_there("--enable-reasoning"),),
        Fate.UNRECOGNISED,
    ),
)


def advise(arguments: Sequence[str]) -> tuple[Advice, ...]:
    """What is to be said of the words behind ``vllm serve``, in their order, each row once."""
    model = command_line.model(arguments)
    flags = [*([Given(MODEL, model)] if model else []), *command_line.given(arguments)]
    found: dict[str, Advice] = {}
    for flag in flags:
        for row in TABLE:
            if row.title not in found and row.applies(flag):
                found[row.title] = Advice(flag.value if flag.name == MODEL else str(flag), row)
    return tuple(found.values())


def table() -> str:
    """The whole table in Markdown, for docs/flags.md."""
    lines = [
        "| flag or variant | on 910B3, this release | why, and what to use instead | read in |",
        "|" + "---|" * 4,
    ]
    for row in TABLE:
        files = ", ".join(dict.fromkeys(f"`{item.file}`" for item in row.evidence))
        lines.append(f"| {_coded(row.title)} | {row.verdict.value} | {row.sentence} | {files} |")
    return "\n".join(lines)


def _coded(title: str) -> str:
    """Flags in a title as code."""
    return re.sub(r"--[a-z0-9-]+", lambda match: f"`{match[0]}`", title)


def as_json(advice: Sequence[Advice]) -> list[dict[str, Any]]:
    return [
        {"given": item.given, "verdict": item.row.verdict.value, "sentence": item.row.sentence}
        for item in advice
    ]


def text(advice: Sequence[Advice]) -> str:
    """One line for each flag that the table knows."""
    return (
        "\n".join(map(str, advice)) or "none of these flags is in the table; vLLM's own parser judges them."
    )


def table_json() -> list[dict[str, str]]:
    return [{"title": row.title, "verdict": row.verdict.value, "sentence": row.sentence} for row in TABLE]
