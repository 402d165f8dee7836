# SPDX-License-Identifier: Apache-2.0
"""``kit plan``: what fits on the cards, before twenty minutes of loading show it.

Weights and KV cache are computed from the config as vLLM 0.20.2 and vllm-ascend 0.20.2rc1 lay
them out; what a start needs beside them is an assumption and shown as one.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from patchkit.errors import Refused
from serving.findings import counted
from serving.model.model_config import LayerKind, ModelConfig

from . import image_tokens, kv_cache
from .card_weights import CardWeights, card_weights, obstacles
from .chips import CHIPS, KEPT_BACK_GIB, Chip
from .head_room import GIB, HeadRoom, head_room
from .kv_cache import Layout
from .plan_request import MOST_SEQUENCES, PlanRequest, VisionMode
from .roofline import Decode, decode

TABLE_CONTEXTS = (4096, 8192, 16384, 32768, 65536, 131072, 262144)

_AGAIN = "correct it and type the command again: {again}"


@dataclass(frozen=True)
class Plan:
    """The whole plan; sizes in bytes on one card."""

    request: PlanRequest
    chip: Chip
    max_positions: int
    weights: CardWeights
    head_room: HeadRoom
    layout: Layout
    full_layers: int
    sliding_layers: int
    max_model_len: int
    max_num_seqs: int
    image_tokens: int | None
    decodes: tuple[Decode, ...]

    @property
    def visible(self) -> int:
        """The card's memory as PyTorch sees it, and as vLLM takes its share of."""
        return int((self.chip.hbm_gib - KEPT_BACK_GIB) * GIB)

    @property
    def allowed(self) -> int:
        """What vLLM may use: ``visible`` · ``--gpu-memory-utilization``."""
        return int(self.visible * self.request.gpu_memory_utilization)

    @property
    def kv_bytes(self) -> int:
        """What is left for the KV cache; negative where the rest alone does not fit."""
        return self.allowed - self.weights.loaded - self.head_room.total

    @property
    def blocks(self) -> int:
        return self.layout.blocks_in(self.kv_bytes)

    @property
    def failed(self) -> bool:
        """vLLM would refuse to start: not one request of the longest context fits."""
        return self.concurrency(self.max_model_len) < 1

    def concurrency(self, context: int) -> int:
        """Requests of this many tokens at once. One block of the pool is vLLM's own (``null_block``)."""
        return max(self.blocks - 1, 0) // self.layout.blocks_for(context)

    def longest_context(self, requests: int) -> int:
        """The most tokens that each of so many requests may have at once; 0 if none."""
        low, high = 0, self.max_positions
        while low < high:
            middle = (low + high + 1) // 2
            if self.concurrency(middle) >= requests:
                low = middle
            else:
                high = middle - 1
        return low


def plan(config: ModelConfig, request: PlanRequest) -> Plan:
    """What the cards hold of this model.

    Raises:
        Refused: values that make no sense, or a parallelism that these sizes do not allow.
    """
    _require_sensible(config, request)
    chip = _chip(request)
    try:
        layout = kv_cache.layout(
            config.text, request.tp, request.dtype_bytes, request.max_num_batched_tokens, request.hybrid_kv
        )
    except ValueError as error:
        raise Refused(f"config.json: {error}, which this plan cannot count", _AGAIN) from None
    draft = Plan(
        request=request,
        chip=chip,
        max_positions=config.text.max_positions,
        weights=card_weights(config, request),
        head_room=head_room(config, request),
        layout=layout,
        full_layers=config.text.count(LayerKind.FULL),
        sliding_layers=config.text.count(LayerKind.SLIDING),
        max_model_len=0,
        max_num_seqs=0,
        image_tokens=_image_tokens(config, request),
        decodes=(),
    )
    context, requests = _chosen(draft)
    decodes = [
        decode(config.text, draft.weights, layout, chip.bandwidth, batch, context)
        for batch in dict.fromkeys((1, requests))
    ]
    return dataclasses.replace(draft, max_model_len=context, max_num_seqs=requests, decodes=tuple(decodes))


def _chosen(draft: Plan) -> tuple[int, int]:
    """Context and concurrency: as asked for; what was left open as large as fits."""
    context, requests = draft.request.max_model_len, draft.request.max_num_seqs
    if context is None:
        context = draft.longest_context(requests or 1) or draft.max_positions
    if requests is None:
        requests = min(max(draft.concurrency(context), 1), MOST_SEQUENCES)
    return context, requests


def _chip(request: PlanRequest) -> Chip:
    known = CHIPS.get(request.chip)
    if request.hbm is None:
        if known is None:
            names = ", ".join(CHIPS)
            what = f"the memory of a {request.chip!r} is not known here (known: {names})"
            raise Refused(what, "give the GiB that npu-smi info shows of a card: {again} --hbm GIB")
        return known
    if known and known.hbm_gib == request.hbm:
        return known
    return Chip(request.chip, request.hbm, known.bandwidth if known else None, "size: as given")


def _image_tokens(config: ModelConfig, request: PlanRequest) -> int | None:
    if request.image is None:
        return None
    try:
        return image_tokens.tokens(*request.image, config.vision.crops)
    except ValueError as error:
        raise Refused(f"the picture of {request.image[0]} × {request.image[1]}: {error}", _AGAIN) from None


def _require_sensible(config: ModelConfig, request: PlanRequest) -> None:
    longest = config.text.max_positions
    batch, requests = request.max_num_batched_tokens, request.max_num_seqs
    reasons = [
        (request.cards < 1 or request.tp < 1, "a number of cards below 1"),
        (request.tp > request.cards, f"tensor parallel over {request.tp} of {request.cards} cards"),
        (not 0 < request.gpu_memory_utilization <= 1, "a gpu-memory-utilization that is not in (0, 1]"),
        (request.max_model_len is not None and not 1 <= request.max_model_len <= longest,
         f"a context outside 1 … {longest}, the model's own limit"),
        (requests is not None and requests < 1, "less than one request at once"),
        (batch < max(requests or 1, 1), "a batch of fewer tokens than requests, which vLLM refuses"),
        (request.hbm is not None and not KEPT_BACK_GIB < request.hbm < 1 << 20, "a card of no such memory"),
        (request.head_room is not None and not 0 <= request.head_room < 1 << 20, "a head-room below 0"),
        (request.dtype_bytes not in {2, 4}, "values that are neither of 2 nor of 4 bytes"),
    ]  # fmt: skip
    for is_so, what in reasons:
        if is_so:
            raise Refused(f"cannot plan for {what}", _AGAIN)
    for obstacle in obstacles(config, request):
        raise Refused(f"vLLM does not start with --tensor-parallel-size {request.tp}: {obstacle}", _AGAIN)


# --- for a person -----------------------------------------------------------------


def flags(plan: Plan) -> tuple[str, ...]:
    """What to type behind the start of the server, one option each.

    ``--max-num-seqs`` only if it was asked for: it caps short requests too, which the same cache
    holds many more of.
    """
    request = plan.request
    found = [
        "--trust-remote-code",
        f"--tensor-parallel-size {request.tp}",
        f"--max-model-len {plan.max_model_len}",
        f"--max-num-batched-tokens {request.max_num_batched_tokens}",
        f"--gpu-memory-utilization {request.gpu_memory_utilization:g}",
    ]
    if request.max_num_seqs is not None:
        found.append(f"--max-num-seqs {request.max_num_seqs}")
    if request.vision is VisionMode.DATA:
        found.append("--mm-encoder-tp-mode data")
    if request.expert_parallel:
        found.append("--enable-expert-parallel")
    if not request.hybrid_kv:
        found.append("--disable-hybrid-kv-cache-manager")
    return tuple(found)


def text(plan: Plan, start: str = "vllm serve DIR") -> str:
    """The plan as a person reads it. It ends with ``start``, the start of the server, and the flags."""
    parts = [
        _heading(plan),
        _card(plan),
        _cache(plan),
        _fits(plan),
        _picture(plan),
        _ceiling(plan),
        [f"source of the figures of {plan.chip.name}: {plan.chip.source}"],
        _type(plan, start),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _heading(plan: Plan) -> list[str]:
    request = plan.request
    tower = "split" if request.vision is VisionMode.WEIGHTS else "whole on each card"
    hybrid = "on" if request.hybrid_kv else "off"
    experts = ", expert parallel" if request.expert_parallel else ""
    line = (
        f"{request.tp} × {plan.chip.name}, tensor parallel {request.tp}{experts}; vision tower {tower}; "
        f"hybrid KV cache {hybrid}; {request.dtype_bytes} bytes a value"
    )
    idle = request.cards - request.tp
    return [line, f"{idle} of {request.cards} cards are left over"] if idle else [line]


def _card(plan: Plan) -> list[str]:
    weights, room, request = plan.weights, plan.head_room, plan.request
    parts = (
        f"activations {_gib(room.activations)}, pictures {_gib(room.encoder)}, runtime {_gib(room.runtime)}"
    )
    of_room = f"ASSUMED, not measured: {parts}" if request.head_room is None else "as given"
    return [
        "on each card, in GiB",
        _row("memory, as npu-smi shows it", plan.chip.hbm_gib * GIB, ""),
        _row(
            "memory, as PyTorch sees it", plan.visible, f"ASSUMED: driver and firmware keep {KEPT_BACK_GIB}"
        ),
        _row(f"of which vLLM may use {request.gpu_memory_utilization:g}", plan.allowed, ""),
        _row("weights", -weights.loaded, f"language {_gib(weights.language)}, vision {_gib(weights.vision)}"),
        _row("", None, f"the MTP layers, {_gib(weights.mtp)}, are not loaded"),
        _row("head-room", -room.total, of_room),
        _row("KV cache", plan.kv_bytes, f"{plan.blocks} blocks of {plan.layout.block_tokens} tokens"),
    ]


def _row(name: str, size: float | None, remark: str) -> str:
    shown = "" if size is None else _gib(size)
    return f"  {name:<30}{shown:>8}   {remark}".rstrip()


def _gib(size: float) -> str:
    return f"{size / GIB:.2f}"


def _cache(plan: Plan) -> list[str]:
    layout, context = plan.layout, plan.max_model_len
    full, sliding = plan.full_layers * layout.layer_bytes, plan.sliding_layers * layout.layer_bytes
    kept = (
        f"{counted(plan.sliding_layers, 'sliding layer')}: their window of {layout.window} tokens"
        if plan.request.hybrid_kv
        else f"{counted(plan.sliding_layers, 'sliding layer')}: {sliding} more, the hybrid manager being off"
    )
    found = [
        "KV cache on each card",
        f"  {layout.layer_bytes} bytes a token and layer",
        f"  {counted(plan.full_layers, 'full layer')}: {full} bytes a token",
        f"  {kept}",
        f"  one request of {context} tokens: {_gib(layout.bytes_for(context))} GiB",
    ]
    if not plan.failed:
        tokens = layout.reported_tokens(plan.blocks, context)
        found.append(f'  vLLM should log about: "GPU KV cache size: {tokens:,} tokens"')
    return found


def _fits(plan: Plan) -> list[str]:
    requests = plan.max_num_seqs
    table = [
        f"  {context:>9} tokens   {plan.concurrency(context):>5} at once"
        for context in TABLE_CONTEXTS
        if context <= plan.max_positions
    ]
    at_once = f"{counted(requests, 'request')} at once"
    longest = f"  longest context of {at_once}: {plan.longest_context(requests)} tokens"
    return [_verdict(plan), longest, *table] if plan.kv_bytes > 0 else [_verdict(plan)]


def _verdict(plan: Plan) -> str:
    context, requests = plan.max_model_len, plan.max_num_seqs
    at_once = plan.concurrency(context)
    if plan.kv_bytes <= 0:
        needed = _gib(plan.weights.loaded + plan.head_room.total)
        return f"DOES NOT FIT: weights and head-room need {needed} GiB, vLLM may use {_gib(plan.allowed)}."
    if plan.failed:
        return f"DOES NOT FIT: not one request of {context} tokens; the longest is {plan.longest_context(1)}."
    if at_once < requests:
        return f"STARTS: {at_once} of {requests} requests of {context} tokens at once, the others wait."
    return f"FITS: {counted(requests, 'request')} of {context} tokens at once."


def _picture(plan: Plan) -> list[str]:
    if plan.request.image is None:
        return []
    width, height = plan.request.image
    return [f"a picture of {width} × {height} pixels takes {plan.image_tokens} tokens"]


def _ceiling(plan: Plan) -> list[str]:
    if plan.chip.bandwidth is None:
        return [f"decode: no public figure of the memory bandwidth of {plan.chip.name}, so no ceiling"]
    speed = f"{plan.chip.bandwidth / 1e12:g} TB/s"
    return [
        f"decode, the ceiling that {speed} of memory bandwidth set: a reference, no forecast",
        *(_ceiling_of(step, plan.request.tp) for step in plan.decodes),
    ]


def _ceiling_of(step: Decode, cards: int) -> str:
    rate = step.tokens_per_second or 0
    return (
        f"  {counted(step.batch, 'request')} of {step.context} tokens: {_gib(step.bytes_read)} GiB a step "
        f"and card, at most {rate:.0f} tokens/s ({rate / cards:.1f} a card)"
    )


def _type(plan: Plan, start: str) -> list[str]:
    if plan.failed:
        return []
    return [" \\\n".join([start, *(f"  {flag}" for flag in flags(plan))])]


# --- for a program ----------------------------------------------------------------


def as_json(plan: Plan) -> dict[str, Any]:
    request, layout, weights = plan.request, plan.layout, plan.weights
    return {
        "chip": dataclasses.asdict(plan.chip),
        "tensor_parallel_size": request.tp,
        "vision": request.vision.value,
        "hybrid_kv": request.hybrid_kv,
        "expert_parallel": request.expert_parallel,
        "bytes_a_card": {
            "visible": plan.visible,
            "allowed": plan.allowed,
            "weights": weights.loaded,
            "weights_language": weights.language,
            "weights_vision": weights.vision,
            "weights_mtp_not_loaded": weights.mtp,
            "head_room": plan.head_room.total,
            "head_room_is_assumed": request.head_room is None,
            "kv_cache": plan.kv_bytes,
        },
        "kv_cache": {
            "bytes_a_token_and_layer": layout.layer_bytes,
            "full_layers": plan.full_layers,
            "sliding_layers": plan.sliding_layers,
            "block_tokens": layout.block_tokens,
            "block_bytes": layout.block_bytes,
            "blocks": plan.blocks,
            "blocks_a_request": layout.blocks_for(plan.max_model_len),
            "bytes_a_request": layout.bytes_for(plan.max_model_len),
        },
        "max_model_len": plan.max_model_len,
        "max_num_seqs": plan.max_num_seqs,
        "fits": not plan.failed,
        "requests_at_once": plan.concurrency(plan.max_model_len),
        "longest_context": plan.longest_context(plan.max_num_seqs),
        "requests_at_once_by_context": {
            str(context): plan.concurrency(context)
            for context in TABLE_CONTEXTS
            if context <= plan.max_positions
        },
        "image_tokens": plan.image_tokens,
        "decode_ceiling": [dataclasses.asdict(step) for step in plan.decodes],
        "flags": list(flags(plan)),
    }
