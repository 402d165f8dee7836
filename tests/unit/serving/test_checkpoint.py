# SPDX-License-Identifier: Apache-2.0
"""``kit check-model``: each defect of a model folder has a message of its own."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from patchkit.errors import Refused
from serving.findings import Finding, Severity
from serving.model import checkpoint
from serving.model.checkpoint import Report
from unit import identifiers
from unit.serving import model_folders
from unit.serving.model_folders import (
    CODE,
    INDEX,
    ModelFolder,
    grouped,
    published_config,
    write_json,
    write_shard,
)

PUBLISHED_BYTES = 402_730_656_512
PUBLISHED_TENSORS = 1_471
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"
UP_PROJ = "model.layers.2.moe.up_proj.weight"


def problems(report: Report) -> list[str]:
    """Their names; the list of all names has them."""
    loud = {finding.name for finding in report.findings if finding.severity is not Severity.OK}
    assert loud <= identifiers.findings()["check-model"]
    return [finding.name for finding in report.findings if finding.severity is Severity.PROBLEM]


def the(report: Report, name: str) -> Finding:
    """The one finding of this name."""
    found = [finding for finding in report.findings if finding.name == name]
    assert len(found) == 1, [finding.name for finding in report.findings]
    return found[0]


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    write_json(path, json.loads(path.read_text()) | fields)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return ModelFolder().write(tmp_path / "model")


# --- what is fine -------------------------------------------------------------------


def test_a_whole_folder_passes_and_says_what_is_in_it(whole: Path) -> None:
    report = checkpoint.check(whole)

    assert problems(report) == []
    assert not report.failed
    assert (report.shards, report.tensors, report.to_fetch) == (3, 137, None)
    assert "all 120 that vLLM loads are there" in the(report, "tensors").what


def test_the_published_checkpoint_is_checked_in_seconds(tmp_path: Path) -> None:
    if not model_folders.holes_take_no_disk(tmp_path):
        pytest.skip("the file system of the temporary folder has no sparse files, and this takes 375 GiB")
    folder = ModelFolder(config=published_config(), shards=24).write(tmp_path / "model")

    started = time.monotonic()
    report = checkpoint.check(folder)
    seconds = time.monotonic() - started

    assert problems(report) == []
    assert (report.shards, report.tensors, report.bytes) == (24, PUBLISHED_TENSORS, PUBLISHED_BYTES)
    assert "51 of the MTP layers" in the(report, "tensors").what
    assert seconds < 5
    print(f"\n{PUBLISHED_TENSORS} tensors in 24 shards: {seconds:.2f} s")


def test_the_grouped_layout_of_names_is_the_same_checkpoint(tmp_path: Path) -> None:
    model = ModelFolder()
    model.tensors = {grouped(name): tensor for name, tensor in model.tensors.items()}

    report = checkpoint.check(model.write(tmp_path / "model"))

    assert "model.language_model.norm.weight" in model.tensors
    assert problems(report) == []


def test_a_checkpoint_without_mtp_layers_is_fine(tmp_path: Path) -> None:
    model = ModelFolder()
    model.tensors = {name: t for name, t in model.tensors.items() if not name.startswith("model.layers.5.")}

    report = checkpoint.check(model.write(tmp_path / "model"))

    assert not report.failed
    assert the(report, "tensor-missing-mtp").what.startswith("17 tensors")


def test_a_chat_template_in_a_file_of_its_own_is_fine(tmp_path: Path) -> None:
    model = ModelFolder(tokenizer={"tokenizer_class": "LlamaTokenizerFast"})
    model.others["chat_template.jinja"] = "{{ messages }}"

    report = checkpoint.check(model.write(tmp_path / "model"))

    assert the(report, "chat-template").severity is Severity.OK
    assert not report.failed


def test_a_single_file_without_an_index_is_fine(tmp_path: Path) -> None:
    model = ModelFolder()
    folder = model.write(tmp_path / "model")
    for name in [*model.parts(), INDEX]:
        (folder / name).unlink()
    write_shard(folder / "model.safetensors", model.tensors)

    assert not checkpoint.check(folder).failed


def test_shards_behind_symlinks_are_read_as_in_a_download_cache(tmp_path: Path, whole: Path) -> None:
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    for path in whole.iterdir():
        (snapshot / path.name).symlink_to(path)

    assert not checkpoint.check(snapshot).failed


# --- the field cases: model folder ---------------------------------------------------


def test_a_shard_that_the_index_names_is_absent(whole: Path) -> None:
    (whole / "model-00002.safetensors").unlink()

    report = checkpoint.check(whole)

    assert problems(report) == ["shard-missing", "half-a-download"]
    assert the(report, "shard-missing").subject == "model-00002.safetensors"


def test_a_shard_that_links_to_nothing_is_absent(whole: Path) -> None:
    (whole / "model-00002.safetensors").unlink()
    (whole / "model-00002.safetensors").symlink_to(whole / "blob")

    assert "symlink to a file that is not there" in the(checkpoint.check(whole), "shard-missing").what


def test_a_zero_byte_shard(whole: Path) -> None:
    os.truncate(whole / "model-00001.safetensors", 0)

    report = checkpoint.check(whole)

    assert problems(report) == ["shard-empty", "half-a-download"]
    assert the(report, "shard-empty").what == "has no bytes at all"


def test_a_truncated_shard_says_how_much_is_missing(whole: Path) -> None:
    shard = whole / "model-00001.safetensors"
    os.truncate(shard, shard.stat().st_size - 100)

    report = checkpoint.check(whole)

    assert problems(report) == ["shard-truncated", "half-a-download"]
    assert "100 bytes are missing" in the(report, "shard-truncated").what
    assert report.to_fetch == 100


def test_no_configuration_code(tmp_path: Path) -> None:
    report = checkpoint.check(ModelFolder(code=None).write(tmp_path / "model"))

    assert problems(report) == ["configuration-missing"]
    assert the(report, "configuration-missing").subject == "configuration_step3p7.py"


def test_auto_map_points_to_another_repository(whole: Path) -> None:
    change_config(whole, auto_map={"AutoConfig": "owner/repo--configuration_step3p7.Step3p7Config"})

    report = checkpoint.check(whole)

    assert problems(report) == ["auto-map-remote"]
    assert "owner/repo" in the(report, "auto-map-remote").what
    assert '"configuration_step3p7.Step3p7Config"' in the(report, "auto-map-remote").cure


def test_a_quantised_checkpoint_is_refused_and_its_tensors_not_held_against_the_config(
    tmp_path: Path,
) -> None:
    model = ModelFolder(tensors={"model.layers.0.mlp.gate_proj.weight_packed": ("F8_E4M3", (8, 8))})
    model.config["quantization_config"] = {"quant_method": "modelopt"}

    report = checkpoint.check(model.write(tmp_path / "model"))

    assert problems(report) == ["quantised"]
    assert '"modelopt"' in the(report, "quantised").what


def test_weights_that_modelslim_quantised_are_refused(whole: Path) -> None:
    write_json(whole / "quant_model_description.json", {})

    assert problems(checkpoint.check(whole)) == ["quantised"]


def test_the_model_type_of_the_text_only_predecessor(whole: Path) -> None:
    change_config(whole, model_type="step3p5")

    report = checkpoint.check(whole)

    assert problems(report) == ["model-type"]
    assert "Step-3.5" in the(report, "model-type").what


def test_no_chat_template_anywhere(tmp_path: Path) -> None:
    report = checkpoint.check(ModelFolder(tokenizer={"tokenizer_class": "X"}).write(tmp_path / "model"))

    assert problems(report) == ["chat-template"]


# --- the field case: half a download --------------------------------------------------


def test_half_a_download_lists_what_is_missing_and_the_total_still_to_fetch(tmp_path: Path) -> None:
    model = ModelFolder()
    folder = model.write(tmp_path / "model")
    parts = model.parts()
    (folder / "model-00003.safetensors").unlink()
    cache = folder / ".cache" / "huggingface" / "download"
    cache.mkdir(parents=True)
    (cache / "abc.incomplete").write_bytes(bytes(1234))

    report = checkpoint.check(folder)

    missing = sum(model_folders.size_of(*tensor) for tensor in parts["model-00003.safetensors"].values())
    assert report.to_fetch == missing
    found = the(report, "half-a-download")
    assert f"still to fetch: {missing} bytes" in found.what
    assert "1 of 3 shards" in found.what
    assert found.details == (".cache/huggingface/download/abc.incomplete: 1234 bytes",)


@pytest.mark.parametrize(
    "leftover",
    ["model-00003.safetensors.incomplete", "._____temp/model-00003.safetensors", "x.aria2"],
)
def test_leftovers_of_each_download_tool_are_found(tmp_path: Path, leftover: str) -> None:
    folder = ModelFolder().write(tmp_path / "model")
    (folder / leftover).parent.mkdir(exist_ok=True)
    (folder / leftover).write_bytes(b"123")
    (folder / "model-00003.safetensors").unlink()

    assert the(checkpoint.check(folder), "half-a-download").details == (f"{leftover}: 3 bytes",)


def test_leftovers_beside_a_whole_checkpoint_are_only_noted(whole: Path) -> None:
    (whole / "old.incomplete").write_bytes(b"123")

    report = checkpoint.check(whole)

    assert the(report, "half-a-download").severity is Severity.NOTE
    assert not report.failed


def test_a_shard_that_aria2_still_fills_is_not_taken_for_whole(whole: Path) -> None:
    (whole / "model-00001.safetensors.aria2").write_bytes(b"123")

    found = the(checkpoint.check(whole), "half-a-download")

    assert found.severity is Severity.PROBLEM
    assert "model-00001.safetensors may be filled up with zeros" in found.what


def test_unfinished_blobs_behind_a_snapshot_are_found(tmp_path: Path) -> None:
    root = tmp_path / "models--a--b"
    folder = ModelFolder().write(root / "snapshots" / "0123")
    (folder / "model-00001.safetensors").unlink()
    (root / "blobs").mkdir()
    (root / "blobs" / "beef.incomplete").write_bytes(b"12")

    assert "beef.incomplete: 2 bytes" in the(checkpoint.check(folder), "half-a-download").details[0]


def test_git_lfs_pointers_instead_of_weights_tell_the_size_to_fetch(whole: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5000\n"
    (whole / "model-00001.safetensors").write_text(pointer)

    report = checkpoint.check(whole)

    assert problems(report) == ["shard-lfs", "half-a-download"]
    assert report.to_fetch == 5000


def test_shards_numbered_m_of_n_tell_which_are_missing_without_an_index(tmp_path: Path) -> None:
    folder = ModelFolder().write(tmp_path / "model")
    (folder / INDEX).unlink()
    for number in (1, 2, 3):
        (folder / f"model-{number:05}.safetensors").rename(folder / f"model-{number:05}-of-00004.safetensors")

    report = checkpoint.check(folder)

    assert the(report, "shard-missing").subject == "model-00004-of-00004.safetensors"
    assert the(report, "index-missing").severity is Severity.WARNING


def test_a_folder_with_nothing_but_its_config_still_has_all_to_fetch(tmp_path: Path) -> None:
    model = ModelFolder(config=published_config(), shards=1)
    folder = model.write(tmp_path / "model")
    (folder / INDEX).unlink()
    (folder / "model-00001.safetensors").unlink()

    report = checkpoint.check(folder)

    assert report.to_fetch == PUBLISHED_BYTES
    assert problems(report) == ["no-weights", "half-a-download"]


# --- tensors: vLLM itself is silent --------------------------------------------------


@pytest.mark.parametrize("name", [Q_PROJ, UP_PROJ])
def test_a_tensor_that_vllm_would_not_miss_is_missed(tmp_path: Path, name: str) -> None:
    model = ModelFolder()
    del model.tensors[name]

    report = checkpoint.check(model.write(tmp_path / "model"))

    assert problems(report) == ["tensor-missing"]
    assert the(report, "tensor-missing").details[0].startswith(name)
    assert "would not say a word" in the(report, "tensor-missing").what


def test_every_single_tensor_is_missed(tmp_path: Path) -> None:
    model = ModelFolder(shards=1)
    folder = model.write(tmp_path / "model")
    (folder / INDEX).unlink()
    for name in model.tensors:
        others = {other: tensor for other, tensor in model.tensors.items() if other != name}
        write_shard(folder / "model-00001.safetensors", others)
        report = checkpoint.check(folder)
        expected = "tensor-missing-mtp" if name.startswith("model.layers.5.") else "tensor-missing"
        assert the(report, expected).details[0].split()[0] == name


def test_one_expert_fewer_is_loud(tmp_path: Path) -> None:
    model = ModelFolder()
    model.tensors[UP_PROJ] = ("BF16", (3, 12, 16))

    report = checkpoint.check(model.write(tmp_path / "model"))

    assert problems(report) == ["tensor-shape"]
    assert "3 experts, config.json says 4" in the(report, "tensor-shape").details[0]


def test_a_transposed_tensor_is_loud(tmp_path: Path) -> None:
    model = ModelFolder()
    model.tensors[Q_PROJ] = ("BF16", (16, 48))

    found = the(checkpoint.check(model.write(tmp_path / "model")), "tensor-shape")

    assert "[16, 48], config.json calls for [48, 16]" in found.details[0]


def test_a_text_tensor_that_fits_nothing_is_a_warning_for_vllm_skips_it(tmp_path: Path) -> None:
    model = ModelFolder()
    model.tensors["model.layers.0.self_attn.k_proj.lora"] = ("BF16", (1,))

    report = checkpoint.check(model.write(tmp_path / "model"))

    assert the(report, "tensor-unknown").severity is Severity.WARNING
    assert not report.failed


def test_a_vision_tensor_that_fits_nothing_is_a_problem_for_vllm_stops(tmp_path: Path) -> None:
    model = ModelFolder()
    model.tensors["vision_model.ln_post.weight"] = ("BF16", (8,))

    assert problems(checkpoint.check(model.write(tmp_path / "model"))) == ["tensor-unknown"]


def test_the_same_tensor_in_both_layouts_is_a_duplicate(tmp_path: Path) -> None:
    model = ModelFolder()
    model.tensors["model.language_model.norm.weight"] = ("BF16", (16,))

    report = checkpoint.check(model.write(tmp_path / "model"))

    assert problems(report) == ["tensor-duplicate"]
    assert the(report, "tensor-duplicate").details[0].startswith("model.norm.weight in ")


def test_the_same_tensor_in_two_shards_is_a_duplicate(whole: Path) -> None:
    first = {"model.norm.weight": ("BF16", (16,))}
    tensors = ModelFolder().parts()
    holder = next(name for name, part in tensors.items() if "model.norm.weight" not in part)
    write_shard(whole / holder, tensors[holder] | first)

    assert problems(checkpoint.check(whole)) == ["tensor-duplicate"]


def test_an_index_that_puts_a_tensor_in_the_wrong_shard(whole: Path) -> None:
    index = json.loads((whole / INDEX).read_text())
    other = next(shard for shard in index["weight_map"].values() if shard != index["weight_map"][Q_PROJ])
    index["weight_map"][Q_PROJ] = other
    write_json(whole / INDEX, index)

    report = checkpoint.check(whole)

    assert problems(report) == ["index-differs"]
    assert the(report, "index-differs").details == (f"{Q_PROJ} is not in {other}",)


def test_eight_bit_weights_without_a_quantisation_config(tmp_path: Path) -> None:
    model = ModelFolder()
    model.tensors[UP_PROJ] = ("F8_E4M3", (4, 12, 16))

    assert problems(checkpoint.check(model.write(tmp_path / "model"))) == ["tensor-type"]


def test_float16_weights_are_noted_for_vllm_converts_them(tmp_path: Path) -> None:
    model = ModelFolder()
    model.tensors = {name: ("F16", shape) for name, (_, shape) in model.tensors.items()}

    report = checkpoint.check(model.write(tmp_path / "model"))

    assert "133 in F16 instead of BF16" in the(report, "tensor-type").what
    assert not report.failed


# --- other files ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "name", "says"),
    [
        (
            CODE.replace("class Step3p7Config(", "class Other("),
            "configuration-class",
            "no class Step3p7Config",
        ),
        ("def broken(:\n", "configuration-broken", "line 1: SyntaxError"),
        (CODE.replace("super().__init__", "missing_name.__init__"), "configuration-broken", "missing_name"),
        ("from .helper import x\n" + CODE, "configuration-imports", "imports helper beside it"),
    ],
)
def test_configuration_code_that_vllm_could_not_import(
    tmp_path: Path, code: str, name: str, says: str
) -> None:
    report = checkpoint.check(ModelFolder(code=code).write(tmp_path / "model"))

    assert problems(report) == [name]
    assert says in the(report, name).what


def test_configuration_code_is_never_run(tmp_path: Path) -> None:
    trap = tmp_path / "was-run"
    code = f"open({str(trap)!r}, 'w')\n" + CODE

    checkpoint.check(ModelFolder(code=code).write(tmp_path / "model"))

    assert not trap.exists()


def test_no_auto_map_at_all(whole: Path) -> None:
    change_config(whole, auto_map=None)

    report = checkpoint.check(whole)

    assert problems(report) == ["auto-map"]
    assert "never looks at the configuration_step3p7.py" in the(report, "auto-map").what


def test_the_tokenizer_class_is_named_with_its_consequence(whole: Path) -> None:
    assert "Chinese" in the(checkpoint.check(whole), "tokenizer-class").what


def test_no_tokenizer(whole: Path) -> None:
    (whole / "tokenizer.json").unlink()

    assert problems(checkpoint.check(whole)) == ["tokenizer-missing"]


def test_an_image_token_of_another_id_than_the_tokenizer_gives(whole: Path) -> None:
    change_config(whole, image_token_id=151679)

    report = checkpoint.check(whole)

    assert problems(report) == ["image-token"]


def test_a_template_that_a_processor_alone_reads_is_a_warning(tmp_path: Path) -> None:
    model = ModelFolder(tokenizer={"tokenizer_class": "LlamaTokenizerFast"})
    model.others["chat_template.json"] = '{"chat_template": "x"}'

    report = checkpoint.check(model.write(tmp_path / "model"))

    assert the(report, "chat-template").severity is Severity.WARNING


def test_weights_in_mistral_form_that_vllm_would_take_alone(whole: Path) -> None:
    write_shard(whole / "consolidated.safetensors", {"x": ("BF16", (1,))})

    assert "consolidated" in problems(checkpoint.check(whole))


# --- the folder itself ---------------------------------------------------------------


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    report = checkpoint.check(tmp_path / "stepfun-ai" / "Step-3.7-Flash")

    assert problems(report) == ["folder"]


def test_the_root_of_a_download_cache_leads_to_the_snapshot(tmp_path: Path) -> None:
    snapshot = ModelFolder().write(tmp_path / "models--a--b" / "snapshots" / "0123")

    report = checkpoint.check(tmp_path / "models--a--b")

    assert problems(report) == ["folder"]
    assert str(snapshot) in the(report, "folder").cure


def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(whole: Path) -> None:
    (whole / "config.json").unlink()
    os.mkfifo(whole / "config.json")

    assert "config-missing" in problems(checkpoint.check(whole))


def test_a_shard_name_cannot_lead_out_of_the_folder(whole: Path) -> None:
    write_json(whole / INDEX, {"weight_map": {"a": "../outside.safetensors"}})

    assert "index-broken" in problems(checkpoint.check(whole))


def test_the_read_speed_is_measured_only_on_demand(whole: Path) -> None:
    assert not [f for f in checkpoint.check(whole).findings if f.name == "read-speed"]
    assert "GB/s" in the(checkpoint.check(whole, measure_reading=True), "read-speed").what


# --- for kit plan ---------------------------------------------------------------------


def test_the_config_of_a_folder_is_read_for_the_plan(whole: Path) -> None:
    assert checkpoint.load_config(whole).text.layers == 5


def test_a_folder_without_a_config_cannot_be_planned(whole: Path) -> None:
    (whole / "config.json").unlink()

    with pytest.raises(Refused, match=r"config.json is not there"):
        checkpoint.load_config(whole)


def test_a_config_without_sizes_cannot_be_planned_and_says_which(whole: Path) -> None:
    change_config(whole, text_config={})

    with pytest.raises(Refused, match=r"does not tell the model's sizes: config.json text_config") as caught:
        checkpoint.load_config(whole)

    assert caught.value.next_step == f"{{kit}} check-model {whole}"


# --- text and data -------------------------------------------------------------------


def test_the_text_puts_problems_first_and_ends_with_the_verdict(whole: Path) -> None:
    (whole / "model-00002.safetensors").unlink()

    lines = checkpoint.text(checkpoint.check(whole)).splitlines()

    assert lines[2].startswith("  PROBLEM  model-00002.safetensors: is not there")
    assert lines[-2].startswith("this folder is NOT fit to be served: 2 problems")


def test_names_out_of_a_file_cannot_steer_the_terminal(tmp_path: Path) -> None:
    model = ModelFolder()
    model.tensors["vision_model.\x1b[2J"] = ("BF16", (1,))

    text = checkpoint.text(checkpoint.check(model.write(tmp_path / "model")))

    assert "\x1b" not in text
    assert "\\x1b[2J" in text


def test_the_data_are_json_and_list_everything(tmp_path: Path) -> None:
    model = ModelFolder()
    model.tensors = {name: t for name, t in model.tensors.items() if "self_attn" not in name}

    data = json.loads(json.dumps(checkpoint.as_json(checkpoint.check(model.write(tmp_path / "model")))))

    assert data["failed"] is True
    missing = next(finding for finding in data["findings"] if finding["name"] == "tensor-missing")
    assert len(missing["details"]) == 5 * 7
