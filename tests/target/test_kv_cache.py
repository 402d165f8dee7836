# SPDX-License-Identifier: Apache-2.0
"""``kit plan`` against vLLM 0.20.2 itself: KV cache, weights, and tokens of pictures."""

from __future__ import annotations

import json
import random
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serving.capacity import image_tokens, kv_cache, memory
from serving.capacity.kv_cache import Layout
from serving.capacity.plan_request import PlanRequest, VisionMode
from serving.findings import Severity
from serving.model import checkpoint, model_config
from target.vllm_half_checkpoint import REMOTE_CODE, TINY, write_json, write_model, write_tokenizer
from target.vllm_half_process import environment
from unit.serving.model_folders import CODE_FILE, published_config

pytest_plugins = ["target.vllm_half_fixtures"]

GIB = 1 << 30
TIMEOUT_S = 300

# Nine layers: three full ones, six sliding.
MODEL = replace(TINY, dense_layers=8)
CONTEXT, BATCH = 4096, 2048
CACHE_BYTES = 256 << 20

POOLS = [
    {"context": context, "batch": batch, "hybrid": hybrid}
    for context in (4096, 131072, 262144)
    for batch in (2048, 8192)
    for hybrid in (True, False)
]
POOL_BYTES = 6 * GIB

WEIGHTS = [
    PlanRequest(cards=8, tp=8),
    PlanRequest(cards=8, tp=8, vision=VisionMode.DATA),
    PlanRequest(cards=4, tp=4),
    PlanRequest(cards=16, tp=16),
]

PUBLISHED_PICTURES = {(224, 224): 171, (1024, 768): 504, (1920, 1080): 836, (3024, 3024): 3164}
_SOURCE = random.Random(37)
PICTURES = [
    *PUBLISHED_PICTURES,
    *((_SOURCE.randint(1, 4000), _SOURCE.randint(1, 4000)) for _ in range(1500)),
    *((_SOURCE.randint(1, 900), _SOURCE.randint(1, 900)) for _ in range(1500)),
    *((_SOURCE.randint(1, 60), _SOURCE.randint(200, 5000)) for _ in range(500)),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_model(folder, MODEL)
    return folder


@pytest.fixture(scope="module")
def published_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published config, without weights."""
    folder = tmp_path_factory.mktemp("published")
    write_tokenizer(folder)
    write_json(folder / "config.json", published_config())
    (folder / CODE_FILE).write_text(REMOTE_CODE, "utf-8")
    return folder


@pytest.fixture(scope="module")
def measured(
    model: Path,
    published_folder: Path,
    sandbox_python: Path,
    linked_patched_root: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """What vLLM answers to all questions of this module, in one process."""
    scratch = tmp_path_factory.mktemp("kv-cache")
    question = {
        "pools": [
            {"full": 12, "sliding": 33, "window": 512, "kv_heads": 1, "head_dim": 128, "size": POOL_BYTES}
            | case
            for case in POOLS
        ],
        "pictures": PICTURES,
        "weights": [{"cards": case.tp, "vision": case.vision.value} for case in WEIGHTS],
        "published": str(published_folder),
        "engine": {
            "folder": str(model),
            "max_model_len": CONTEXT,
            "max_num_batched_tokens": BATCH,
            "max_num_seqs": 2,
            "kv_cache_memory_bytes": CACHE_BYTES,
        },
    }
    with (scratch / "log").open("w") as log:
        run = subprocess.run(
            [str(sandbox_python), "-m", "target.kv_cache_probe"],
            input=json.dumps(question),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=scratch,
            env=environment(linked_patched_root, scratch),
            timeout=TIMEOUT_S,
        )
    assert run.returncode == 0, (scratch / "log").read_text()[-4000:]
    answer: dict[str, Any] = json.loads(run.stdout.strip().splitlines()[-1])
    return answer


@pytest.fixture(scope="module")
def tiny_layout(model: Path) -> Layout:
    return kv_cache.layout(checkpoint.load_config(model).text, 1, 2, BATCH, hybrid=True)


@pytest.fixture(scope="module")
def published() -> model_config.ModelConfig:
    config = model_config.read(published_config(), None).config
    assert config is not None
    return config


def test_the_cache_of_a_running_engine_has_the_planned_blocks(
    measured: dict[str, Any], tiny_layout: Layout
) -> None:
    """vLLM rounds down to whole blocks."""
    found = measured["engine"]

    assert found["groups"] == [["FullAttentionSpec", 3], ["SlidingWindowSpec", 3], ["SlidingWindowSpec", 3]]
    assert found["blocks"] == tiny_layout.blocks_in(CACHE_BYTES)
    assert found["pool_bytes"] == found["blocks"] * tiny_layout.block_bytes


def test_the_cache_that_a_running_engine_reports_is_within_a_hundredth_of_the_plan(
    measured: dict[str, Any], tiny_layout: Layout
) -> None:
    line = next(line for line in measured["engine"]["log"] if "KV cache size" in line)
    match = re.fullmatch(r"GPU KV cache size: ([\d,]+) tokens", line)
    assert match
    reported = int(match[1].replace(",", ""))

    planned = tiny_layout.reported_tokens(tiny_layout.blocks_in(CACHE_BYTES), CONTEXT)
    assert planned == pytest.approx(reported, rel=0.01)


def test_the_parameters_of_a_running_engine_have_the_planned_bytes(
    measured: dict[str, Any], model: Path
) -> None:
    request = PlanRequest(cards=1, tp=1, chip="CPU", hbm=64.0)
    weights = memory.plan(checkpoint.load_config(model), request).weights

    assert measured["engine"]["parameter_bytes"] == weights.loaded


@pytest.mark.parametrize(
    "number", range(len(POOLS)), ids=lambda number: "-".join(map(str, POOLS[number].values()))
)
def test_the_pool_of_the_published_model_on_eight_cards(
    measured: dict[str, Any], published: model_config.ModelConfig, number: int
) -> None:
    case, found = POOLS[number], measured["pools"][number]
    layout = kv_cache.layout(published.text, 8, 2, case["batch"], bool(case["hybrid"]))
    blocks = layout.blocks_in(POOL_BYTES)

    assert found["blocks"] == blocks
    assert found["groups"] == ([11, 11, 11, 12] if case["hybrid"] else [45])
    assert found["concurrency"] == pytest.approx(blocks / layout.blocks_for(case["context"]))
    assert found["tokens"] == layout.reported_tokens(blocks, case["context"])


@pytest.mark.parametrize("number", range(len(WEIGHTS)))
def test_the_weights_of_the_published_model_on_one_card(
    measured: dict[str, Any], published: model_config.ModelConfig, number: int
) -> None:
    assert memory.plan(published, WEIGHTS[number]).weights.loaded == measured["weights"][number]


def test_pictures_take_the_tokens_that_the_processor_counts(measured: dict[str, Any]) -> None:
    assert measured["pictures"][: len(PUBLISHED_PICTURES)] == list(PUBLISHED_PICTURES.values())
    assert [image_tokens.tokens(*size) for size in PICTURES] == measured["pictures"]


def test_every_tensor_of_the_folder_that_the_engine_ran_on_is_known(model: Path) -> None:
    [found] = [finding for finding in checkpoint.check(model).findings if finding.name == "tensors"]

    assert found.severity is Severity.OK
