# SPDX-License-Identifier: Apache-2.0
"""config.json as vLLM 0.20.2 reads it."""

from __future__ import annotations

from typing import Any

import pytest

from serving.findings import Finding, Severity
from serving.model import config_source, model_config, weights
from serving.model.model_config import LayerKind, ModelConfig, Reading
from unit.serving.model_folders import CODE, published_config, small_config, tensors_of

ENTRY = "Step3p7Config"


def read(config: dict[str, Any], code: str = CODE) -> Reading:
    return model_config.read(config, config_source.parse(code.encode(), "configuration_step3p7.py"), ENTRY)


def with_text(**fields: Any) -> dict[str, Any]:
    config = small_config()
    config["text_config"] |= fields
    return config


def without(part: str, field: str) -> dict[str, Any]:
    config = small_config()
    del config[part][field]
    return config


def problems(reading: Reading) -> list[Finding]:
    return [finding for finding in reading.findings if finding.severity is Severity.PROBLEM]


def the_problem(reading: Reading) -> Finding:
    found = problems(reading)
    assert len(found) == 1, found
    return found[0]


def usable(reading: Reading) -> ModelConfig:
    assert reading.config is not None
    return reading.config


# --- what a right one says ------------------------------------------------------------


def test_the_published_sizes() -> None:
    reading = read(published_config())
    text = usable(reading).text

    assert problems(reading) == []
    assert (text.layers, text.mtp_layers, len(text.kinds)) == (45, 3, 48)
    assert (text.count(LayerKind.FULL), text.count(LayerKind.SLIDING)) == (12, 33)
    assert text.attention[LayerKind.FULL].heads == 64
    assert text.attention[LayerKind.SLIDING].heads == 96
    assert text.moe_layers == frozenset(range(3, 45))
    assert usable(reading).vision.mlp_width == 8960


@pytest.mark.parametrize("config", [small_config(), published_config()])
def test_the_tensors_that_a_config_calls_for_are_those_of_the_checkpoint(config: dict[str, Any]) -> None:
    expected = weights.expected(usable(read(config)))

    assert {weight.name: (weight.dtype, weight.shape) for weight in expected} == tensors_of(config)


def test_the_published_count_and_bytes() -> None:
    """Figures of the published reconstruction: 1,471 tensors, 51 of them MTP."""
    expected = weights.expected(usable(read(published_config())))
    without_mtp = [weight for weight in expected if weight.part is not weights.Part.MTP]

    assert (len(expected), len(expected) - len(without_mtp)) == (1471, 51)
    assert sum(weight.bytes_on_disk for weight in expected) == 402_730_656_512
    assert sum(weight.bytes_on_disk for weight in without_mtp) == 397_874_314_496


@pytest.mark.parametrize("length", [5, 6])
def test_per_layer_lists_end_with_the_layers_or_with_the_mtp_layers(length: int) -> None:
    config = small_config()
    for key in (
        "layer_types",
        "rope_theta",
        "partial_rotary_factors",
        "swiglu_limits",
        "swiglu_limits_shared",
    ):
        config["text_config"][key] = config["text_config"][key][:length]

    assert problems(read(config)) == []


@pytest.mark.parametrize("clamp", [7, 7.0])
def test_a_routed_clamp_of_seven_is_fine_in_either_spelling(clamp: float) -> None:
    assert problems(read(with_text(swiglu_limits=[0, None, 0, 0, clamp, 0]))) == []


# --- the clamp, which vLLM asserts ---------------------------------------------------------


def test_a_routed_clamp_other_than_seven() -> None:
    found = the_problem(read(with_text(swiglu_limits=[0.0, 0.0, 0.0, 0.0, 10.0, 0.0])))

    assert found.name == "routed-clamp"
    assert "10 in layer 4" in found.what


@pytest.mark.parametrize("layer", [0, 5])
def test_a_clamp_where_no_routed_expert_is_does_not_matter(layer: int) -> None:
    """Layer 0 is dense, layer 5 an MTP layer that is not loaded."""
    limits = [0.0, 0.0, 0.0, 0.0, 7.0, 0.0]
    limits[layer] = 3.0

    assert problems(read(with_text(swiglu_limits=limits))) == []


@pytest.mark.parametrize("limits", [None, [], [0.0] * 6, [None] * 6, [0.0] * 5 + [7.0]])
def test_no_clamp_at_all_is_a_warning(limits: list[Any] | None) -> None:
    """Nor does a clamp in the MTP layer, the last, which is not loaded, count as one."""
    found = [f for f in read(with_text(swiglu_limits=limits)).findings if f.name == "no-clamp"]

    assert [finding.severity for finding in found] == [Severity.WARNING]


# --- lists and values ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("layer_types", "IndexError"),
        ("rope_theta", "IndexError"),
        ("partial_rotary_factors", "IndexError"),
        ("swiglu_limits", "without a word"),
        ("swiglu_limits_shared", "IndexError"),
    ],
)
def test_a_per_layer_list_that_ends_too_early(key: str, says: str) -> None:
    config = small_config()
    config["text_config"][key] = config["text_config"][key][:4]

    found = the_problem(read(config))

    assert (found.name, found.subject) == ("config-list", f"config.json text_config.{key}")
    assert "4 entries for 5 layers" in found.what
    assert says in found.what


def test_a_per_layer_list_with_entries_to_spare_is_noted() -> None:
    reading = read(with_text(rope_theta=[1e4] * 9))

    assert problems(reading) == []
    assert [finding.name for finding in reading.findings if finding.severity is Severity.NOTE] == [
        "config-list"
    ]


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("att_impl_type", "MFA", "knows only GQA"),
        ("need_fp32_gate", False, "asserts"),
        ("need_fp32_gate", None, "asserts"),
        ("use_moe_router_bias", False, "asserts"),
        ("partial_rotary_factors", [0.25] * 6, "asserts 1 or 0.5"),
        ("layer_types", ["linear_attention"] * 6, '"linear_attention", which is none of'),
        ("moe_layers_enum", [1, 2], 'where a text such as "3,4,5"'),
        ("moe_layers_enum", "7,8", "names no layer"),
        ("num_attention_groups", 1, "a whole number from 2"),
        ("hidden_size", 16.0, "is 16.0, where a whole number"),
        ("num_hidden_layers", 10**12, "from 1 to 1024"),
        ("architectures", ["Qwen3ForCausalLM"], "Qwen3ForCausalLM"),
        ("attention_other_setting", {"attention_type": "full_attention"}, '"sliding_attention" is needed'),
    ],
)
def test_a_value_that_vllm_does_not_accept(field: str, value: Any, says: str) -> None:
    found = the_problem(read(with_text(**{field: value})))

    assert says in found.what
    assert field in found.subject


def test_a_patch_size_that_gives_other_image_tokens_than_the_processor_counts() -> None:
    config = small_config()
    config["vision_config"]["patch_size"] = 28

    found = the_problem(read(config))

    assert "49 and 25 tokens" in found.what
    assert "169 and 81" in found.what


@pytest.mark.parametrize("model_type", ["qwen3_vl", None, 7])
def test_another_model(model_type: Any) -> None:
    assert the_problem(read(small_config() | {"model_type": model_type})).name == "model-type"


def test_an_architecture_that_the_registry_does_not_hold() -> None:
    assert the_problem(read(small_config() | {"architectures": ["Step3VLForConditionalGeneration"]}))


def test_a_config_without_its_parts_is_no_config() -> None:
    reading = read({"model_type": "step3p7", "architectures": ["Step3p7ForConditionalGeneration"]})

    assert reading.config is None


# --- fields that config.json lacks -------------------------------------------------------


def test_a_field_that_neither_config_nor_code_sets_stops_vllm() -> None:
    found = the_problem(read(without("text_config", "moe_router_scaling_factor")))

    assert found.name == "config-field"
    assert "Step3p7TextConfig sets none" in found.what
    assert "AttributeError" in found.what


def test_a_field_that_vllm_would_guess_names_the_guess() -> None:
    found = the_problem(read(without("text_config", "layer_types")))

    assert "every second layer" in found.what


def test_a_field_that_the_code_sets_is_taken_from_there() -> None:
    config = without("text_config", "hidden_size")
    del config["vision_config"]["width"]

    reading = read(config)

    assert problems(reading) == []
    assert usable(reading).text.hidden_size == 4096
    assert usable(reading).vision.width == 8
    assert "hidden_size" in next(f.what for f in reading.findings if f.name == "config-from-code")


def test_code_that_drops_fields_is_caught() -> None:
    code = CODE.replace(
        "        super().__init__(**kwargs)\n\n\nclass Step3p7Config", "\n\nclass Step3p7Config"
    )

    found = the_problem(read(small_config(), code))

    assert found.name == "config-dropped"
    assert "max_position_embeddings" in found.what


def test_without_readable_code_a_missing_field_is_left_open() -> None:
    reading = model_config.read(without("text_config", "rms_norm_eps"), None)

    assert problems(reading) == []
    assert "config-field-unknown" in [finding.name for finding in reading.findings]


def test_a_class_on_a_base_from_elsewhere_is_left_open() -> None:
    code = CODE.replace("class Step3p7TextConfig(PretrainedConfig)", "class Step3p7TextConfig(Elsewhere)")
    reading = read(without("text_config", "rms_norm_eps"), "from other import Elsewhere\n" + code)

    assert problems(reading) == []


def test_defaults_of_class_attributes_and_of_a_base_in_the_module_are_found() -> None:
    code = CODE.replace(
        "class Step3p7TextConfig(PretrainedConfig):\n",
        "class Base(PretrainedConfig):\n    rms_norm_eps: float = 1e-5\n\n\nclass Step3p7TextConfig(Base):\n",
    )

    assert problems(read(without("text_config", "rms_norm_eps"), code)) == []
