# SPDX-License-Identifier: Apache-2.0
"""The set ``window``: vllm-ascend's own attention class, over a stand-in of its kernel, sees what it should.

Every way that the class calls the kernel is driven: a prompt at once, a prompt in pieces, a
prompt whose beginning is in the cache, decoding, several tokens to be verified; at once, as
captured for a graph, and as a captured graph is told of new lengths; with attention sinks and
without. The reference is a loop over tokens in float64.

What the kernel's band shows is an assumption (see `npu_attention`), and no test here can prove it.
"""

from __future__ import annotations

import importlib.util
import math
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from target import npu_attention, npu_stand_in
from target.comparison import same_bits
from target.conftest import PROJECT
from target.real_packages import ATTENTION, ascend_from, load, npu_stood_in

HEADS, KV_HEADS, SIZE = 4, 2, 16
BLOCK = 16
TOLERANCE = 1e-5
"""Of a result in float32, whose largest is about 3; a tenth of it was seen."""
FAR = 1000 * TOLERANCE

WINDOWS = (1, 2, 7, 16, 40)
"""One is the token itself; 16 is a block of the cache; 40 is more than some requests have."""


@dataclass(frozen=True)
class Request:
    """How many tokens it has, and how many of them are being computed: the last ones."""

    tokens: int
    new: int


class State(Enum):
    """What a step does, by vllm-ascend's name for it."""

    PREFILL = "PrefillNoCache"
    CACHE_HIT = "PrefillCacheHit"
    CHUNKED = "ChunkedPrefill"
    DECODE = "DecodeOnly"
    VERIFY = "SpecDecoding"


BATCHES = {
    State.PREFILL: (Request(45, 45), Request(1, 1), Request(18, 18)),
    State.CACHE_HIT: (Request(45, 13), Request(33, 17)),
    State.CHUNKED: (Request(50, 1), Request(45, 20), Request(9, 8), Request(17, 1)),
    State.DECODE: (Request(50, 1), Request(16, 1), Request(17, 1), Request(2, 1)),
    State.VERIFY: (Request(50, 4), Request(21, 4)),
}


class Way(Enum):
    """How the kernel is reached."""

    AT_ONCE = "at once"
    CAPTURED = "captured"
    REPLAYED = "a captured graph with new lengths"


# A graph is captured for decoding, for verifying, and for mixed steps.
WAYS = [(state, Way.AT_ONCE) for state in State] + [
    (state, way)
    for state in (State.CHUNKED, State.DECODE, State.VERIFY)
    for way in (Way.CAPTURED, Way.REPLAYED)
]
by_way = pytest.mark.parametrize(
    ("state", "way"), WAYS, ids=lambda value: value.value if isinstance(value, Enum) else ""
)
by_sink = pytest.mark.parametrize("sink", [False, True], ids=["no sink", "sink"])


# --- the reference ---


@dataclass(frozen=True)
class Batch:
    """Some requests and all of their queries, keys and values, each ``[tokens, heads, SIZE]``."""

    requests: tuple[Request, ...]
    queries: list[torch.Tensor]
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    sink: torch.Tensor | None

    def new(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """The rows that a step computes, request by request."""
        rows = zip(self.requests, tensors, strict=True)
        return torch.cat([tensor[request.tokens - request.new :] for request, tensor in rows])

    def without_last(self) -> Batch:
        """One step ago: each request a token shorter, except that it keeps its new ones."""
        shorter = tuple(Request(request.tokens - 1, request.new) for request in self.requests)
        queries, keys, values = (
            [tensor[:-1] for tensor in each] for each in (self.queries, self.keys, self.values)
        )
        return Batch(shorter, queries, keys, values, self.sink)


def draw(requests: tuple[Request, ...], sink: bool) -> Batch:
    generator = torch.Generator().manual_seed(37)

    def normal(heads: int) -> list[torch.Tensor]:
        return [torch.randn(request.tokens, heads, SIZE, generator=generator) for request in requests]

    sinks = torch.randn(HEADS, generator=generator) if sink else None
    return Batch(requests, normal(HEADS), normal(KV_HEADS), normal(KV_HEADS), sinks)


def reference(batch: Batch, window: int | None) -> torch.Tensor:
    """``[T, HEADS, SIZE]`` in float64: each new token sees itself and the ``window - 1`` before it."""
    results = []
    for request, queries, keys, values in zip(
        batch.requests, batch.queries, batch.keys, batch.values, strict=True
    ):
        for position in range(request.tokens - request.new, request.tokens):
            first = 0 if window is None else max(0, position - window + 1)
            seen = slice(first, position + 1)
            results.append(
                torch.stack(
                    [
                        one_head(
                            queries[position, head].double(),
                            keys[seen, head * KV_HEADS // HEADS].double(),
                            values[seen, head * KV_HEADS // HEADS].double(),
                            math.inf if batch.sink is None else float(batch.sink[head]),
                        )
                        for head in range(HEADS)
                    ]
                )
            )
    return torch.stack(results)


def one_head(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, sink: float) -> torch.Tensor:
    """``[SIZE]``; a sink that is infinite is none."""
    weights = (keys @ query / SIZE**0.5).exp()
    total = weights.sum() + (0 if sink == math.inf else math.exp(sink))
    return weights @ values / total


# --- the real class ---


@dataclass
class Layer:
    """One attention layer of the real class, with a cache that is NaN where nothing was written."""

    attention: Any
    implementation: Any
    cache: torch.Tensor
    config: Any

    def run(self, batch: Batch, state: State, way: Way) -> torch.Tensor:
        """What the class computes for the new tokens of a step, ``[T, HEADS, SIZE]``."""
        first = batch.without_last() if way is Way.REPLAYED else batch
        metadata = self.metadata(first, state)
        self.fill(first, metadata.block_tables)
        query = first.new(first.queries)
        output = torch.full_like(query, torch.nan)
        with self.context(metadata, capturing=way is not Way.AT_ONCE) as context:
            if way is not Way.AT_ONCE:
                self.prepare_graph(len(query))
            key, value = first.new(first.keys), first.new(first.values)
            layer = SimpleNamespace(_k_scale_float=1.0, _v_scale_float=1.0)
            self.implementation.forward(layer, query, key, value, tuple(self.cache), metadata, output)
            if way is Way.REPLAYED:
                query.copy_(batch.new(batch.queries))
                self.replay(batch, metadata.block_tables, state, context)
        return output

    def prepare_graph(self, tokens: int) -> None:
        """As the model runner does before it captures, except that an earlier test's graph is forgotten."""
        parameters: Any = self.attention.get_graph_params.__globals__
        parameters["_graph_params"] = None
        parameters["set_graph_params"]([tokens])

    def replay(self, batch: Batch, block_tables: torch.Tensor, state: State, context: Any) -> None:
        """The next step of the same requests: the graph is there, and is told the new lengths."""
        metadata = self.metadata(batch, state)
        assert torch.equal(metadata.block_tables[:, : block_tables.shape[1]], block_tables)
        self.fill(batch, block_tables, everything=True)
        context.attn_metadata = {"model.layers.0.attn": metadata}
        text = SimpleNamespace(sliding_window=1)
        config = SimpleNamespace(
            speculative_config=None,
            compilation_config=self.config.compilation_config,
            model_config=SimpleNamespace(hf_text_config=text),
        )
        self.implementation.update_graph_params(
            npu_stand_in.Stream(), context, metadata.actual_seq_lengths_q[-1], config
        )

    def metadata(self, batch: Batch, state: State) -> Any:
        tokens = [request.tokens for request in batch.requests]
        new = torch.tensor([request.new for request in batch.requests])
        table = block_table(len(tokens))
        slots = [
            table[row, position // BLOCK] * BLOCK + position % BLOCK
            for row, request in enumerate(batch.requests)
            for position in range(request.tokens - request.new, request.tokens)
        ]
        return self.attention.AscendMetadata(
            attn_mask=torch.ones(2048, 2048).triu(1).to(torch.int8),
            attn_state=self.attention.AscendAttentionState[state.value],
            num_actual_tokens=int(new.sum()),
            seq_lens=torch.tensor(tokens, dtype=torch.int32),
            seq_lens_list=tokens,
            actual_seq_lengths_q=new.cumsum(0).tolist(),
            block_tables=table,
            slot_mapping=torch.tensor(slots, dtype=torch.int32),
            model_runner_type="generate",
        )

    def fill(self, batch: Batch, table: torch.Tensor, everything: bool = False) -> None:
        """Write what earlier steps have computed into the cache, or what this one does, too."""
        for row, request in enumerate(batch.requests):
            positions = torch.arange(request.tokens - (0 if everything else request.new))
            slots = table[row].long()[positions // BLOCK] * BLOCK + positions % BLOCK
            for part, tensors in enumerate((batch.keys, batch.values)):
                self.cache[part].view(-1, KV_HEADS, SIZE)[slots] = tensors[row][positions]

    @contextmanager
    def context(self, metadata: Any, *, capturing: bool) -> Iterator[Any]:
        from vllm.forward_context import get_forward_context, set_forward_context

        with set_forward_context({"model.layers.0.attn": metadata}, self.config):
            context = get_forward_context()
            vars(context).update(capturing=capturing, sinks=self.implementation.sinks is not None)
            yield context


def block_table(requests: int) -> torch.Tensor:
    """``[requests, 4]``: no two of the blocks of a request side by side."""
    return torch.arange(4 * requests).flip(0).reshape(4, requests).T.contiguous().to(torch.int32)


@cache
def attention_of(root: Path) -> Any:
    """The module, imported once for each root: it takes a second."""
    return load(ATTENTION, root)


@contextmanager
def layer(root: Path, window: int | None, sink: torch.Tensor | None = None) -> Iterator[Layer]:
    """A layer of the class as the root has it."""
    attention = attention_of(root)
    with npu_stood_in():
        from vllm.config import VllmConfig, set_current_vllm_config

        config = VllmConfig()
        with set_current_vllm_config(config):
            implementation = construct(attention.AscendAttentionBackendImpl, window, sink)
        cache = torch.full((2, 4 * max(map(len, BATCHES.values())), BLOCK, KV_HEADS, SIZE), torch.nan)
        yield Layer(attention, implementation, cache, config)


def construct(implementation: Any, window: int | None, sink: torch.Tensor | None = None) -> Any:
    return implementation(
        num_heads=HEADS,
        head_size=SIZE,
        scale=SIZE**-0.5,
        num_kv_heads=KV_HEADS,
        alibi_slopes=None,
        sliding_window=window,
        kv_cache_dtype="auto",
        logits_soft_cap=None,
        attn_type="decoder",
        kv_sharing_target_layer_name=None,
        sinks=sink,
    )


@dataclass(frozen=True)
class Run:
    """What the class computed, and the kernel's calls."""

    found: torch.Tensor
    calls: list[npu_attention.Call]


def run(root: Path, window: int | None, state: State, way: Way, batch: Batch) -> Run:
    npu_attention.seen.clear()
    with layer(root, window, batch.sink) as made:
        found = made.run(batch, state, way)
    return Run(found, list(npu_attention.seen))


def worst(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Infinite where a number is missing."""
    return float((found.double() - expected).abs().nan_to_num(math.inf).max())


# --- the width ---


@by_way
@by_sink
@pytest.mark.parametrize("window", WINDOWS)
def test_with_the_set_a_token_sees_itself_and_what_the_window_has_before_it(
    window_root: Path, state: State, way: Way, sink: bool, window: int
) -> None:
    batch = draw(BATCHES[state], sink)
    found = run(window_root, window, state, way, batch).found
    assert worst(found, reference(batch, window)) < TOLERANCE


@by_way
@by_sink
@pytest.mark.parametrize("window", WINDOWS)
def test_without_the_set_it_sees_one_key_more(
    patched_root: Path, state: State, way: Way, sink: bool, window: int
) -> None:
    """Why there is the set; and the test above can fail."""
    batch = draw(BATCHES[state], sink)
    found = run(patched_root, window, state, way, batch).found
    assert worst(found, reference(batch, window + 1)) < TOLERANCE
    assert worst(found, reference(batch, window)) > FAR


@by_way
@by_sink
def test_without_a_window_every_bit_and_every_call_is_as_it_was(
    patched_root: Path, window_root: Path, state: State, way: Way, sink: bool
) -> None:
    batch = draw(BATCHES[state], sink)
    before, after = (run(root, None, state, way, batch) for root in (patched_root, window_root))
    assert worst(after.found, reference(batch, None)) < TOLERANCE
    assert same_bits(after.found, before.found)
    assert [plain(call) for call in after.calls] == [plain(call) for call in before.calls]


@by_way
@by_sink
def test_of_a_windows_calls_one_number_is_another(
    patched_root: Path, window_root: Path, state: State, way: Way, sink: bool
) -> None:
    batch = draw(BATCHES[state], sink)
    before, after = (run(root, 7, state, way, batch) for root in (patched_root, window_root))
    kernel = "npu_fused_infer_attention_score" + ("_v2" if sink else "")
    assert [call.operator for call in after.calls] == [kernel] * (2 if way is Way.REPLAYED else 1)
    assert [plain(call) | {"pre_tokens": 7} for call in after.calls] == [plain(call) for call in before.calls]
    for call in after.calls:
        assert (call.arguments["sparse_mode"], call.arguments["pre_tokens"]) == (4, 6)
        assert call.arguments["next_tokens"] == 0


def plain(call: npu_attention.Call) -> dict[str, Any]:
    """The arguments without tensors' contents, which are compared by what comes out."""
    return {
        name: tuple(value.shape) if isinstance(value, torch.Tensor) else value
        for name, value in call.arguments.items()
        if name not in {"out"}
    }


@pytest.mark.parametrize("window", [1, 7, None])
def test_paged_attention_which_knows_no_window_is_for_layers_without_one(
    window_root: Path, monkeypatch: pytest.MonkeyPatch, window: int | None
) -> None:
    """Where it is configured (``pa_shape_list``), the class asks whether there is a window."""
    reached: list[str] = []
    batch = draw(BATCHES[State.DECODE], sink=False)
    with layer(window_root, window) as made:
        monkeypatch.setattr(made.attention, "using_paged_attention", lambda *_: True)

        def paged(_query: torch.Tensor, _metadata: Any, output: torch.Tensor) -> torch.Tensor:
            reached.append("paged")
            return output

        monkeypatch.setattr(made.implementation, "forward_paged_attention", paged)
        made.run(batch, State.DECODE, Way.AT_ONCE)
    assert reached == (["paged"] if window is None else [])


@pytest.mark.parametrize("window", [1, 7])
def test_the_class_that_takes_no_window_still_says_so(
    window_root: Path, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    """``fa3_v1.py`` is the one other file that asks the implementation for its window."""
    library = ModuleType("flash_attn_npu_v3")
    library.flash_attn_with_kvcache = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, library.__name__, library)
    with ascend_from(window_root):
        from vllm.config import VllmConfig, set_current_vllm_config

        module = importlib.import_module("vllm_ascend.attention.fa3_v1")
        with (
            set_current_vllm_config(VllmConfig()),
            pytest.raises(ValueError, match="does not support sliding window"),
        ):
            construct(module.AscendFAImpl, window)


# --- what kit verify asks a card ---


@pytest.fixture(scope="module")
def probe() -> Any:
    file = PROJECT / "patches" / "v0.20.2rc1" / "window" / "probe.py"
    spec = importlib.util.spec_from_file_location("window_probe", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LOOKS = pytest.mark.parametrize("look", ["prefill", "decode"])


def asked(probe: Any, root: Path, look: str) -> dict[str, str]:
    """What the probe says of a root, the stand-in being the card."""
    with ascend_from(root):
        answer: dict[str, str] = probe.attempt("it", lambda: probe.width(getattr(probe, look)("cpu"), "cpu"))
    return answer


@LOOKS
def test_the_probe_passes_with_the_set(probe: Any, window_root: Path, look: str) -> None:
    assert asked(probe, window_root, look) == {
        "check": "it",
        "status": "passed",
        "detail": "a window of 8 shows exactly 8 keys (float16, cpu)",
    }


@LOOKS
def test_the_probe_finds_the_key_too_many_without_it(probe: Any, patched_root: Path, look: str) -> None:
    assert asked(probe, patched_root, look)["detail"].startswith(
        "with a window of 8 the token at 39 sees the positions 31 to 39 instead of 32 to 39"
    )


@LOOKS
def test_on_a_card_that_counts_otherwise_the_probe_says_that_the_set_is_wrong(
    probe: Any, window_root: Path, look: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exclusive(band: npu_attention.Band, queries: int, keys: int) -> torch.Tensor:
        narrower = npu_attention.Band(band.sparse_mode, band.pre_tokens - 1, band.next_tokens)
        return shown(narrower, queries, keys)

    shown = npu_attention.Band.visible
    monkeypatch.setattr(npu_attention.Band, "visible", exclusive)
    found = asked(probe, window_root, look)
    assert found["status"] == "failed"
    assert found["detail"].endswith("sees the positions 33 to 39 instead of 32 to 39: type kit revert window")


@LOOKS
def test_without_a_card_the_probe_was_not_run(probe: Any, window_root: Path, look: str) -> None:
    with ascend_from(window_root):
        found = probe.attempt("it", lambda: probe.on_npu(getattr(probe, look)))
    assert found == {"check": "it", "status": "not run", "detail": "torch_npu sees no NPU here"}


def test_without_torch_npu_the_probe_was_not_run(probe: Any) -> None:
    found = probe.attempt("it", lambda: probe.on_npu(probe.prefill))
    assert found["status"] == "not run"
    assert found["detail"].startswith("vllm_ascend cannot be imported here (ModuleNotFoundError")


# --- the attribute's readers ---


def test_no_other_file_takes_a_number_from_the_implementations_window(window_root: Path) -> None:
    """It now holds how far a token sees back. What other files call so is the model's or the cache's."""
    readers = {
        file.name
        for file in (window_root / "vllm_ascend").rglob("*.py")
        if re.search(r"\b(impl|self)\.sliding_window\b", file.read_text("utf-8"))
    }
    models = {"qwen2_decoder.py", "patch_deepseek_compressor.py", "deepseek_v4.py"}
    assert readers - models == {"attention_v1.py", "fa3_v1.py"}
    fa3 = (window_root / "vllm_ascend/attention/fa3_v1.py").read_text("utf-8")
    assert re.findall(r".*\bself\.sliding_window\b.*", fa3) == ["        if self.sliding_window is not None:"]


def test_the_class_is_the_one_that_vllm_ascend_uses(window_root: Path) -> None:
    """Context parallelism has a class of its own, which takes no notice of a window at all."""
    module = load(ATTENTION, window_root)
    source = (window_root / "vllm_ascend/attention/context_parallel/attention_cp.py").read_text("utf-8")
    assert "return AscendAttentionBackendImpl" in Path(str(module.__file__)).read_text("utf-8")
    assert "pre_tokens" not in source
