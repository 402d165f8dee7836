# SPDX-License-Identifier: Apache-2.0
"""Whatever the files of a model folder hold, the answer is a report: no traceback, bounded memory."""

from __future__ import annotations

import contextlib
import copy
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patchkit.errors import Refused
from serving.capacity import memory
from serving.capacity.plan_request import PlanRequest
from serving.model import checkpoint
from unit.serving.model_folders import INDEX, ModelFolder, header, small_config, write_json

FUZZED = [
    "config.json",
    INDEX,
    "model-00001.safetensors",
    "tokenizer_config.json",
    "configuration_step3p7.py",
    "chat_template.jinja",
    "tokenizer.json",
    "generation_config.json",
]

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
SETTINGS = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ModelFolder().write(tmp_path_factory.mktemp("fuzz") / "model")


def report_is_whole(folder: Path) -> None:
    """A report of the folder can be made, shown and written."""
    report = checkpoint.check(folder)
    assert checkpoint.text(report)
    json.dumps(checkpoint.as_json(report))


@pytest.mark.parametrize("name", FUZZED)
@SETTINGS
@given(content=st.binary(max_size=400))
def test_any_bytes_in_any_file(folder: Path, name: str, content: bytes) -> None:
    before = (folder / name).read_bytes() if (folder / name).exists() else None
    (folder / name).write_bytes(content)
    try:
        report_is_whole(folder)
    finally:
        if before is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(before)


def paths_of(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(value, dict):
        return [path]
    return [path, *(deeper for key, inner in value.items() for deeper in paths_of(inner, (*path, key)))]


@SETTINGS
@given(path=st.sampled_from(paths_of(small_config())[1:]), value=ANY_JSON)
def test_any_value_in_any_field_of_the_config(folder: Path, path: tuple[str, ...], value: Any) -> None:
    config: Any = copy.deepcopy(small_config())
    inner = config
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    write_json(folder / "config.json", config)
    try:
        report_is_whole(folder)
        with contextlib.suppress(Refused):
            memory.text(memory.plan(checkpoint.load_config(folder), PlanRequest(cards=1, tp=1)))
    finally:
        write_json(folder / "config.json", small_config())


@SETTINGS
@given(value=ANY_JSON)
def test_any_json_as_the_index(folder: Path, value: Any) -> None:
    before = (folder / INDEX).read_bytes()
    write_json(folder / INDEX, {"metadata": value, "weight_map": value})
    try:
        report_is_whole(folder)
    finally:
        (folder / INDEX).write_bytes(before)


ENTRY = st.fixed_dictionaries(
    {"dtype": st.sampled_from(["BF16", "F4", "X"]), "shape": ANY_JSON, "data_offsets": ANY_JSON}
)


@SETTINGS
@given(entries=st.dictionaries(st.text(max_size=8), ANY_JSON | ENTRY, max_size=4), data=st.integers(0, 64))
def test_any_entries_in_a_header(folder: Path, entries: dict[str, Any], data: int) -> None:
    shard = folder / "model-00001.safetensors"
    before = shard.read_bytes()
    text = json.dumps(entries).encode()
    shard.write_bytes(len(text).to_bytes(8, "little") + text + bytes(data))
    try:
        report_is_whole(folder)
    finally:
        shard.write_bytes(before)


@SETTINGS
@given(claimed=st.integers(0, (1 << 64) - 1))
def test_whatever_length_a_header_claims_memory_stays_bounded(folder: Path, claimed: int) -> None:
    shard = folder / "model-00001.safetensors"
    before = shard.read_bytes()
    shard.write_bytes(claimed.to_bytes(8, "little") + header({})[8:])
    tracemalloc.start()
    try:
        report_is_whole(folder)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        shard.write_bytes(before)
    assert peak < 32 << 20
