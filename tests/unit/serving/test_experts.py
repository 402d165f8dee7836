# SPDX-License-Identifier: Apache-2.0
"""``kit check-model`` on experts: packed, one by one, and mixed; completeness is counted in slices."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.findings import Severity
from serving.model import checkpoint, experts
from serving.model.checkpoint import Report
from unit.serving.model_folders import (
    INDEX,
    ModelFolder,
    Tensors,
    holes_take_no_disk,
    published_config,
    size_of,
    write_shard,
)
from unit.serving.test_checkpoint import problems, the

LAYER = "model.layers.2.moe."
EXPERTS = 4
"""Of the small config."""


def unpacked(tensors: Tensors) -> Tensors:
    """The same experts, each with tensors of its own."""
    found = {}
    for name, (dtype, shape) in tensors.items():
        layer, _, rest = name.rpartition("moe.")
        if not rest.endswith("_proj.weight") or not layer or len(shape) != 3:
            found[name] = (dtype, shape)
            continue
        for expert in range(shape[0]):
            found[f"{layer}moe.experts.{expert}.{rest}"] = (dtype, shape[1:])
    return found


def one_by_one(shards: int = 3) -> ModelFolder:
    model = ModelFolder(shards=shards)
    model.tensors = unpacked(model.tensors)
    return model


def checked(model: ModelFolder, folder: Path) -> Report:
    return checkpoint.check(model.write(folder / "model"))


# --- what is fine -------------------------------------------------------------------


def test_experts_one_by_one_are_as_good_as_packed_ones(tmp_path: Path) -> None:
    model = one_by_one()

    report = checked(model, tmp_path)

    assert any(".moe.experts.3.down_proj.weight" in name for name in model.tensors)
    assert problems(report) == []
    assert "are there" in the(report, "tensors").what


def test_one_projection_packed_and_the_others_one_by_one_is_whole(tmp_path: Path) -> None:
    packed = ModelFolder().tensors
    model = one_by_one()
    model.tensors = {
        n: t for n, t in model.tensors.items() if not (LAYER in n and n.endswith("up_proj.weight"))
    }
    model.tensors[f"{LAYER}up_proj.weight"] = packed[f"{LAYER}up_proj.weight"]

    assert problems(checked(model, tmp_path)) == []


def test_one_layer_packed_and_another_one_by_one_is_whole(tmp_path: Path) -> None:
    model = ModelFolder()
    packed, own = model.tensors, unpacked(model.tensors)
    model.tensors = {n: t for n, t in own.items() if LAYER not in n} | {
        n: t for n, t in packed.items() if LAYER in n
    }

    assert any(".experts." in name for name in model.tensors)
    assert problems(checked(model, tmp_path)) == []


# --- what is missing ------------------------------------------------------------------


def test_each_single_expert_tensor_that_is_missing_is_loud(tmp_path: Path) -> None:
    model = one_by_one(shards=1)
    folder = model.write(tmp_path / "model")
    (folder / INDEX).unlink()
    experts_own = [name for name in model.tensors if ".moe.experts." in name]
    for name in experts_own:
        others = {other: tensor for other, tensor in model.tensors.items() if other != name}
        write_shard(folder / "model-00001.safetensors", others)
        report = checkpoint.check(folder)
        assert report.failed
        assert the(report, "tensor-missing").details[0].split()[0] == name
        assert "all " not in checkpoint.text(report)
    assert len(experts_own) >= 3 * EXPERTS


def test_a_packed_projection_does_not_hide_a_missing_expert_of_another(tmp_path: Path) -> None:
    packed = ModelFolder().tensors
    model = one_by_one()
    model.tensors = {
        n: t for n, t in model.tensors.items() if not (LAYER in n and n.endswith("up_proj.weight"))
    }
    model.tensors[f"{LAYER}up_proj.weight"] = packed[f"{LAYER}up_proj.weight"]
    del model.tensors[f"{LAYER}experts.1.gate_proj.weight"]

    found = the(checked(model, tmp_path), "tensor-missing")

    assert [detail.split()[0] for detail in found.details] == [f"{LAYER}experts.1.gate_proj.weight"]


def test_many_missing_experts_are_one_line_a_layer_and_projection(tmp_path: Path) -> None:
    model = one_by_one()
    model.tensors = {
        n: t for n, t in model.tensors.items() if not (LAYER in n and n.endswith("up_proj.weight"))
    }

    found = the(checked(model, tmp_path), "tensor-missing")

    assert found.details == (f"{LAYER}experts.{{0-3}}.up_proj.weight BF16 [12, 16]: 4 of them",)
    assert found.what.startswith("4 tensors")


def test_experts_that_are_missing_here_and_there_are_each_told(tmp_path: Path) -> None:
    model = one_by_one()
    for expert in (0, 2, 3):
        del model.tensors[f"{LAYER}experts.{expert}.down_proj.weight"]

    found = the(checked(model, tmp_path), "tensor-missing")

    assert found.details == (f"{LAYER}experts.{{0,2-3}}.down_proj.weight BF16 [16, 12]: 3 of them",)


def test_a_missing_shard_of_experts_is_counted_to_the_byte(tmp_path: Path) -> None:
    model = one_by_one(shards=4)
    folder = model.write(tmp_path / "model")
    lost = model.parts()[model.shard_name(2)]
    (folder / model.shard_name(2)).unlink()

    report = checkpoint.check(folder)

    assert any(".experts." in name for name in lost)
    assert report.to_fetch == sum(size_of(*tensor) for tensor in lost.values())


# --- what is there and should not be ------------------------------------------------------


def test_an_expert_number_that_the_config_does_not_have_is_named_as_such(tmp_path: Path) -> None:
    model = one_by_one()
    model.tensors[f"{LAYER}experts.{EXPERTS}.up_proj.weight"] = model.tensors[
        f"{LAYER}experts.0.up_proj.weight"
    ]

    report = checked(model, tmp_path)

    found = the(report, "expert-number")
    assert found.severity is Severity.WARNING
    assert found.details == (f"{LAYER}experts.{EXPERTS}.up_proj.weight",)
    assert "moe_num_experts" in found.cure
    assert "tensor-unknown" not in [finding.name for finding in report.findings]


def test_an_expert_number_too_many_beside_packed_experts_is_named_as_well(tmp_path: Path) -> None:
    model = ModelFolder()
    model.tensors[f"{LAYER}experts.{EXPERTS}.up_proj.weight"] = ("BF16", (1, 1))

    report = checked(model, tmp_path)

    assert "expert-number" in [finding.name for finding in report.findings]


def test_an_expert_of_another_shape_is_a_problem(tmp_path: Path) -> None:
    model = one_by_one()
    model.tensors[f"{LAYER}experts.0.up_proj.weight"] = ("BF16", (1, 1))

    found = the(checked(model, tmp_path), "tensor-shape")

    assert f"{LAYER}experts.0.up_proj.weight" in found.details[0]


def test_an_expert_packed_and_by_itself_is_there_twice(tmp_path: Path) -> None:
    model = ModelFolder()
    model.tensors |= {n: t for n, t in unpacked(model.tensors).items() if f"{LAYER}experts.0.up_proj" in n}

    found = the(checked(model, tmp_path), "tensor-duplicate")

    assert f"beside {LAYER}up_proj.weight, the same slice" in found.details[0]


def test_an_expert_in_two_shards_is_there_twice(tmp_path: Path) -> None:
    model = one_by_one(shards=2)
    folder = model.write(tmp_path / "model")
    first, second = model.parts().values()
    name = next(name for name in first if ".experts." in name)
    write_shard(folder / model.shard_name(2), second | {name: first[name]})

    assert name in the(checkpoint.check(folder), "tensor-duplicate").details[0]


@pytest.mark.parametrize("kind", ["weight_scale", "weight_offset", "weight_scale_inv", "scales"])
def test_a_scale_without_its_weight_is_told_as_that(tmp_path: Path, kind: str) -> None:
    model = ModelFolder()
    model.tensors[f"{LAYER}experts.1.up_proj.{kind}"] = ("F32", (16, 1))

    report = checked(model, tmp_path)

    assert problems(report) == ["expert-scale-alone"]
    assert the(report, "expert-scale-alone").details == (f"{LAYER}experts.1.up_proj.{kind}",)


def test_a_scale_in_place_of_its_weight_hides_no_missing_expert(tmp_path: Path) -> None:
    model = one_by_one()
    scaled, other = f"{LAYER}experts.1.up_proj.weight", f"{LAYER}experts.3.gate_proj.weight"
    model.tensors[f"{scaled}_scale"] = ("F32", (12, 1))
    del model.tensors[scaled], model.tensors[other]

    report = checked(model, tmp_path)

    assert set(problems(report)) == {"expert-scale-alone", "tensor-missing"}
    missing = [detail.split()[0] for detail in the(report, "tensor-missing").details]
    assert sorted(missing) == sorted([scaled, other])


def test_a_scale_whose_weight_is_still_to_come_is_not_alone(tmp_path: Path) -> None:
    model = one_by_one()
    weight = next(name for name in model.parts()[model.shard_name(2)] if ".experts." in name)
    model.tensors[f"{weight}_scale"] = ("F32", (12, 1))
    folder = model.write(tmp_path / "model")
    lost = next(shard for shard, part in model.parts().items() if weight in part)
    assert f"{weight}_scale" not in model.parts()[lost]
    (folder / lost).unlink()

    assert "expert-scale-alone" not in problems(checkpoint.check(folder))


@pytest.mark.parametrize("kind", ["weight_packed", "weight"])
def test_quantised_experts_are_refused_as_such_and_not_called_missing(tmp_path: Path, kind: str) -> None:
    model = one_by_one()
    model.tensors = {
        (n.replace("_proj.weight", f"_proj.{kind}") if ".experts." in n else n): t
        for n, t in model.tensors.items()
    }
    model.tensors |= {
        n.replace(f"_proj.{kind}", "_proj.weight_scale"): ("F32", (shape[0], 1))
        for n, (_, shape) in model.tensors.items()
        if ".experts." in n
    }

    report = checked(model, tmp_path)

    assert problems(report) == ["tensor-type"]
    assert "quantised experts" in the(report, "tensor-type").what


# --- the published size -------------------------------------------------------------------


def test_36288_expert_tensors_of_the_published_size_are_compared_by_name() -> None:
    from serving.model import model_config

    config = model_config.read(published_config(), None).config
    assert config is not None
    names = frozenset(f"model.layers.{layer}.moe.experts.0.up_proj.weight" for layer in range(3, 45))

    wanted = experts.expected_beside(config, names)

    own = [weight for weight in wanted if experts.parse(weight.name)]
    assert len(own) == 42 * 288 * 3
    assert {weight.shape for weight in own} == {(1280, 4096), (4096, 1280)}


def test_a_whole_folder_of_them_passes_and_a_short_one_is_told_in_a_few_lines(tmp_path: Path) -> None:
    if not holes_take_no_disk(tmp_path):
        pytest.skip("the file system of the temporary folder has no sparse files, and this takes 375 GiB")
    model = ModelFolder(config=published_config(), shards=24)
    model.tensors = unpacked(model.tensors)
    whole = checkpoint.check(model.write(tmp_path / "whole"))
    model.tensors = {name: tensor for name, tensor in model.tensors.items() if ".experts.287." not in name}

    short = checkpoint.check(model.write(tmp_path / "short"))

    assert problems(whole) == []
    assert whole.tensors == 1471 + 42 * 3 * 287
    assert len(the(short, "tensor-missing").details) == 42 * 3
    assert len(checkpoint.text(short).splitlines()) < 30
