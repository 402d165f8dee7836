# SPDX-License-Identifier: Apache-2.0
"""``kit plan``. Every expected figure was worked out by hand from the published sizes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from patchkit.errors import Refused
from serving.capacity import chips, image_tokens, kv_cache, memory
from serving.capacity.memory import Plan
from serving.capacity.plan_request import PlanRequest, VisionMode, picture_size
from serving.model import model_config
from serving.model.model_config import LayerKind, ModelConfig
from unit.serving.model_folders import published_config, small_config

GIB = 1 << 30

# Parameters on one of eight cards.
FULL_ATTENTION = 2 * 4_194_304 + 2 * 524_288 + 32_768 + 8_448  # q and o; k and v; gate; norms
SLIDING_ATTENTION = 2 * 6_291_456 + 2 * 524_288 + 49_152 + 8_448
DENSE_MLP = 3 * 5_767_168
EXPERTS = 3 * 188_743_680
SHARED_EXPERT = 3 * 655_360
ROUTER_BYTES = 4 * (288 * 4096 + 288)
TABLE = 65_994_752
LANGUAGE = (
    2 * (12 * FULL_ATTENTION + 33 * SLIDING_ATTENTION + 3 * DENSE_MLP)
    + 2 * (42 * (EXPERTS + SHARED_EXPERT) + 2 * TABLE + 4096)
    + 42 * ROUTER_BYTES
)
VISION_BLOCK = 884_736 + 576 + 294_912 + 1_536 + 6_144 + 3_072 + 2 * 1_720_320 + 1_120 + 1_536
VISION_WHOLE = 903_168 + 4_153_344 + 3_072 + 42_467_328 + 3_072 + 169_869_312 + 6_144
PROJECTOR = 25_165_824


def config_of(values: dict[str, Any]) -> ModelConfig:
    config = model_config.read(values, None).config
    assert config is not None
    return config


@pytest.fixture(scope="module")
def published() -> ModelConfig:
    return config_of(published_config())


def planned(config: ModelConfig, **request: Any) -> Plan:
    return memory.plan(config, PlanRequest(**request))


# --- weights --------------------------------------------------------------------------


def test_weights_on_one_of_eight_cards(published: ModelConfig) -> None:
    weights = planned(published).weights

    assert weights.language == LANGUAGE == 49_425_544_960
    assert weights.vision == 2 * (47 * VISION_BLOCK + VISION_WHOLE + PROJECTOR // 8) == 876_723_904
    assert round(weights.loaded / GIB, 2) == 46.85


def test_weights_with_the_tower_whole_on_each_card(published: ModelConfig) -> None:
    """The projector is whole too (``disable_tp``); the often quoted 49.68 GiB count it as divided."""
    weights = planned(published, vision=VisionMode.DATA).weights

    assert round(weights.loaded / GIB, 2) == 49.72
    assert round((weights.loaded - 2 * PROJECTOR * 7 // 8) / GIB, 2) == 49.68


def test_the_mtp_layers_would_take_three_quarters_of_a_gibibyte(published: ModelConfig) -> None:
    layer = SLIDING_ATTENTION + DENSE_MLP + 33_554_432 + 3 * 4096 + TABLE

    assert planned(published).weights.mtp == 3 * 2 * layer
    assert round(planned(published).weights.mtp / GIB, 2) == 0.73


def test_on_one_card_the_weights_are_those_of_the_checkpoint_but_for_the_router(
    published: ModelConfig,
) -> None:
    """397,874,314,496 bytes without MTP, and the router gates in float32 instead of bfloat16."""
    weights = planned(published, cards=1, tp=1).weights

    assert weights.loaded == 397_874_314_496 + 42 * 288 * 4096 * 2


def test_more_cards_than_kv_heads_hold_a_whole_head_each(published: ModelConfig) -> None:
    """On 16 cards k and v stay at one head of 128 rows; the other large tensors halve."""
    eight, sixteen = planned(published).weights, planned(published, cards=16, tp=16).weights

    whole = 45 * (2 * 524_288 + 8_448) + 4096
    assert (
        sixteen.language
        == (eight.language - 2 * whole - 42 * ROUTER_BYTES) // 2 + 2 * whole + 42 * ROUTER_BYTES
    )


def test_expert_parallel_gives_whole_experts_to_cards(published: ModelConfig) -> None:
    assert planned(published, expert_parallel=True).weights.language == LANGUAGE
    assert planned(published, expert_parallel=True).weights.experts == 2 * 42 * 36 * 3 * 1280 * 4096


def test_experts_that_do_not_divide_evenly_weigh_on_the_fullest_card() -> None:
    values = small_config()
    values["text_config"]["moe_num_experts"] = 5
    weights = planned(config_of(values), cards=2, tp=2, expert_parallel=True).weights

    assert weights.experts == 2 * 4 * 3 * (3 * 12 * 16)


def test_the_vocabulary_is_padded_to_64_rows() -> None:
    values = small_config()
    values["text_config"]["vocab_size"] = 65

    assert planned(config_of(values), cards=1, tp=1).weights.embedding == 128 * 16 * 2


# --- KV cache ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("context", "batch", "hybrid", "blocks", "gib"),
    [
        (131072, 2048, True, 1024 + 3 * 21, 0.80),
        (131072, 8192, True, 1024 + 3 * 69, 0.90),
        (262144, 2048, True, 2048 + 3 * 21, 1.55),
        (262144, 8192, True, 2048 + 3 * 69, 1.65),
        (131072, 2048, False, 1024, 2.81),
        (262144, 2048, False, 2048, 5.62),
        (100, 2048, True, 1 + 3 * 2, 0.01),
    ],
)
def test_one_request_on_one_of_eight_cards(
    published: ModelConfig, context: int, batch: int, hybrid: bool, blocks: int, gib: float
) -> None:
    layout = kv_cache.layout(published.text, 8, 2, batch, hybrid)

    assert layout.blocks_for(context) == blocks
    assert int(layout.bytes_for(context) / GIB * 100 + 0.5) == pytest.approx(gib * 100, abs=1)


def test_a_token_takes_512_bytes_a_layer(published: ModelConfig) -> None:
    layout = kv_cache.layout(published.text, 8, 2, 2048, hybrid=True)

    assert layout.layer_bytes == 512
    assert layout.layer_bytes * published.text.count(LayerKind.FULL) == 6_144
    assert layout.layer_bytes * published.text.count(LayerKind.SLIDING) == 16_896
    assert layout.block_bytes == 128 * 512 * 12


@pytest.mark.parametrize(("tp", "bytes_a_layer"), [(1, 4096), (4, 1024), (8, 512), (16, 512)])
def test_more_cards_than_kv_heads_save_no_cache(published: ModelConfig, tp: int, bytes_a_layer: int) -> None:
    assert kv_cache.layout(published.text, tp, 2, 2048, hybrid=True).layer_bytes == bytes_a_layer


@pytest.mark.parametrize(
    ("kinds", "in_group", "groups"),
    [
        ("fsss" * 11 + "f", 12, (1, 3)),
        ("fs", 1, (1, 1)),
        ("ffss" + "s", 2, (1, 2)),
        ("fffffssss", 5, (1, 1)),
        ("fffffff" + "ssss", 4, (2, 1)),
        ("ffff", 4, (1, 0)),
        ("ssss", 4, (0, 1)),
    ],
)
def test_layers_are_grouped_by_the_rarer_kind(kinds: str, in_group: int, groups: tuple[int, int]) -> None:
    values = small_config()
    names = {"f": "full_attention", "s": "sliding_attention"}
    text = values["text_config"]
    text |= {"num_hidden_layers": len(kinds), "num_nextn_predict_layers": 0}
    text["layer_types"] = [names[kind] for kind in kinds]
    for key in ("rope_theta", "partial_rotary_factors", "swiglu_limits", "swiglu_limits_shared"):
        text[key] = [1] * len(kinds)

    layout = kv_cache.layout(config_of(values).text, 1, 2, 2048, hybrid=True)

    assert layout.layers_in_group == in_group
    assert (layout.full_groups, layout.sliding_groups) == groups


def test_kv_heads_of_two_sizes_are_not_guessed_at() -> None:
    values = small_config()
    values["text_config"]["attention_other_setting"]["num_attention_groups"] = 3

    with pytest.raises(Refused, match="different number or size"):
        planned(config_of(values), cards=1, tp=1)


# --- what fits --------------------------------------------------------------------------


def test_what_fits_on_eight_910b3(published: ModelConfig) -> None:
    """60.96 GiB · 0.9 - 46.85 - 3 leaves 5,386,277,095 bytes: 6,849 blocks of 786,432, one of them vLLM's."""
    plan = planned(published, head_room=3.0)

    assert plan.blocks == 6849
    assert (
        [plan.concurrency(context) for context in (8192, 131072, 262144)]
        == [
            6848 // (64 + 63),
            6848 // (1024 + 63),
            6848 // (2048 + 63),
        ]
        == [53, 6, 3]
    )
    assert (plan.max_model_len, plan.max_num_seqs) == (262144, 3)
    assert not plan.failed


def test_the_longest_context_is_the_longest(published: ModelConfig) -> None:
    """20 requests share 6,848 blocks, 342 each; 63 are the sliding layers', 279 · 128 tokens remain."""
    plan = planned(published, head_room=3.0, max_num_seqs=20)

    assert plan.max_model_len == plan.longest_context(20) == 279 * 128
    assert plan.concurrency(279 * 128 + 1) == 19


def test_more_requests_than_fit_at_once_still_start(published: ModelConfig) -> None:
    plan = planned(published, head_room=3.0, max_model_len=131072, max_num_seqs=7)

    assert not plan.failed
    assert "STARTS: 6 of 7 requests of 131072 tokens at once, the others wait." in memory.text(plan)


def test_without_the_hybrid_manager_the_whole_context_does_not_fit(published: ModelConfig) -> None:
    """6,849 · 12 / 45 leaves 1,826 blocks where 2,048 are needed."""
    plan = planned(published, head_room=3.0, hybrid_kv=False, max_model_len=262144)

    assert plan.failed
    assert f"the longest is {1825 * 128}." in memory.text(plan)


def test_weights_that_do_not_fit_are_said_so(published: ModelConfig) -> None:
    plan = planned(published, tp=4)

    assert plan.failed
    assert plan.blocks == 0
    assert "DOES NOT FIT: weights and head-room" in memory.text(plan)
    assert "vllm serve" not in memory.text(plan)


def test_the_head_room_is_an_assumption_with_a_formula(published: ModelConfig) -> None:
    room = planned(published).head_room

    assert room.activations == 2048 * 2 * (8 * (8192 + 480) + 16384) + 2 * 256 * 128896 * 4
    assert room.encoder == 2 * (49360 * 10080 + 3164 * 4096)
    assert room.runtime == 3 * GIB // 2
    assert "ASSUMED, not measured" in memory.text(planned(published))


def test_in_data_mode_each_card_encodes_its_share_of_the_views(published: ModelConfig) -> None:
    room = planned(published, vision=VisionMode.DATA).head_room

    assert room.encoder == 2 * (6170 * (4 * 1536 + 3 * (1536 + 8960)) + 3164 * 4096)


def test_the_memory_that_pytorch_sees_is_less_than_npu_smi_shows(published: ModelConfig) -> None:
    assert planned(published).visible == int(60.96 * GIB)
    assert planned(published, hbm=32.0).visible == int(28.96 * GIB)


# --- decode -----------------------------------------------------------------------------


def test_the_decode_ceiling(published: ModelConfig) -> None:
    """Of 288 experts one token reads 8; all but the table of embeddings and the rest is read whole."""
    plan = planned(published, max_model_len=4096, max_num_seqs=20)
    one, twenty = plan.decodes

    experts = 2 * 42 * EXPERTS
    dense = LANGUAGE - experts - 2 * TABLE
    cache = 512 * (12 * 4096 + 33 * 512)
    assert one.bytes_read == pytest.approx(dense + experts * 8 / 288 + cache, abs=2)
    assert one.tokens_per_second == pytest.approx(1.6e12 / 3_085_170_432, rel=1e-6)
    share = 1 - (280 / 288) ** 20
    assert twenty.bytes_read == pytest.approx(dense + experts * share + 20 * cache, abs=2)


def test_a_chip_without_a_public_bandwidth_has_no_ceiling(published: ModelConfig) -> None:
    plan = planned(published, chip="910B4-1")

    assert plan.decodes[0].tokens_per_second is None
    assert "no public figure" in memory.text(plan)


# --- pictures ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "tokens"),
    [
        ((224, 224), 171),
        ((1024, 768), 504),
        ((1920, 1080), 836),
        ((3024, 3024), 3164),
        ((6048, 6048), 3164),
        ((728, 300), 171 + 83 * 2),
        ((300, 100), 171 + 83 * 3),
        ((10, 700), 171),
    ],
)
def test_tokens_of_a_picture(size: tuple[int, int], tokens: int) -> None:
    assert image_tokens.tokens(*size) == tokens


def test_without_crops_every_picture_takes_the_whole_view() -> None:
    assert image_tokens.tokens(3024, 3024, crops=False) == 171


@pytest.mark.parametrize("text", ["1920x1080", "1920X1080", "1920×1080"])
def test_a_size_is_read_as_people_write_it(text: str) -> None:
    assert picture_size(text) == (1920, 1080)


@pytest.mark.parametrize("text", ["", "1920", "1920x", "axb", "1x2x3"])
def test_what_is_no_size_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        picture_size(text)


def test_the_picture_that_was_asked_for_is_in_the_plan(published: ModelConfig) -> None:
    assert "1920 × 1080 pixels takes 836 tokens" in memory.text(planned(published, image=(1920, 1080)))


# --- what cannot be planned ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"tp": 3}, "8 KV heads (full_attention) neither divide 3 nor are divided by it"),
        ({"tp": 64, "cards": 64}, "96 attention heads of the sliding layers cannot be divided by 64"),
        ({"tp": 32, "cards": 32}, "16 heads of the vision tower (--mm-encoder-tp-mode data avoids this)"),
        ({"tp": 16}, "tensor parallel over 16 of 8 cards"),
        ({"tp": 0}, "a number of cards below 1"),
        ({"gpu_memory_utilization": 1.5}, "gpu-memory-utilization"),
        ({"max_model_len": 300_000}, "a context outside 1 … 262144"),
        ({"max_num_seqs": 0}, "less than one request"),
        ({"max_num_seqs": 4096}, "a batch of fewer tokens than requests"),
        ({"chip": "910C"}, "the memory of a '910C' is not known here"),
        ({"hbm": 3.0}, "a card of no such memory"),
        ({"image": (0, 5)}, "no size of a picture"),
        ({"image": (32, 200_000)}, "no pixel left"),
    ],
)
def test_values_that_make_no_sense_get_one_sentence(
    published: ModelConfig, request_: dict[str, Any], says: str
) -> None:
    with pytest.raises(Refused) as caught:
        planned(published, **request_)

    assert says in str(caught.value)


def test_an_unknown_chip_is_planned_with_the_memory_that_is_given(published: ModelConfig) -> None:
    plan = planned(published, chip="910C", hbm=64.0)

    assert plan.chip == chips.Chip("910C", 64.0, None, "size: as given")


# --- flags, text and data ------------------------------------------------------------------


def test_the_flags_to_type(published: ModelConfig) -> None:
    plan = planned(
        published, max_model_len=65536, max_num_seqs=4, vision=VisionMode.DATA, hybrid_kv=False,
        expert_parallel=True, gpu_memory_utilization=0.92,
    )  # fmt: skip

    assert memory.flags(plan) == (
        "--trust-remote-code",
        "--tensor-parallel-size 8",
        "--max-model-len 65536",
        "--max-num-batched-tokens 2048",
        "--gpu-memory-utilization 0.92",
        "--max-num-seqs 4",
        "--mm-encoder-tp-mode data",
        "--enable-expert-parallel",
        "--disable-hybrid-kv-cache-manager",
    )


def test_a_concurrency_that_nobody_asked_for_does_not_become_a_cap(published: ModelConfig) -> None:
    assert not [flag for flag in memory.flags(planned(published)) if flag.startswith("--max-num-seqs")]


def test_cards_that_are_left_over_are_named(published: ModelConfig) -> None:
    assert "8 of 16 cards are left over" in memory.text(planned(published, cards=16))


def test_the_data_are_json(published: ModelConfig) -> None:
    data = json.loads(json.dumps(memory.as_json(planned(published, head_room=3.0, image=(224, 224)))))

    assert data["bytes_a_card"]["weights"] == LANGUAGE + 876_723_904
    assert data["kv_cache"]["blocks"] == 6849
    assert data["requests_at_once_by_context"]["131072"] == 6
    assert data["bytes_a_card"]["head_room_is_assumed"] is False
    assert data["image_tokens"] == 171
    assert data["fits"] is True
