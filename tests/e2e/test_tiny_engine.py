# SPDX-License-Identifier: Apache-2.0
"""The five files' vLLM half: the real vLLM 0.20.2 with the tiny model, against the reference.

Float32, greedy, log-probabilities of the whole vocabulary. One engine for each layout.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tiny.comparison import FAR, TOLERANCE, compare
from tiny.conversations import CHINESE, ask, picture, prompt_ids
from tiny.engine import Question
from tiny.engine_process import Answers, EngineFailed, ask_engine
from tiny.launch import environment
from tiny.pictures import Views, look_at
from tiny.reference import Feature, Reference, read_weights

PICTURES = {
    "text": [],
    "picture": [picture(224, 224)],
    "picture with crops": [picture(1024, 768)],
    "two pictures": [picture(300, 200), picture(120, 200)],
}
TEXTS = {name: "这些图片里有什么？" if drawn else CHINESE for name, drawn in PICTURES.items()}
QUESTIONS = {name: Question(ask(TEXTS[name], *drawn)) for name, drawn in PICTURES.items()}
LAYOUTS = ("flat", "grouped")


@pytest.fixture(scope="module")
def views() -> dict[str, list[Views]]:
    return {name: [look_at(drawn) for drawn in pictures] for name, pictures in PICTURES.items()}


@pytest.fixture(scope="module")
def engines(
    sandbox_python: Path,
    patched_root: Path,
    flat_model: Path,
    grouped_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Answers]:
    """One run for each layout."""
    answers = {}
    for layout, model in zip(LAYOUTS, (flat_model, grouped_model), strict=True):
        scratch = tmp_path_factory.mktemp(layout)
        settings = environment(scratch, patched_root)
        answers[layout] = ask_engine(sandbox_python, settings, model, QUESTIONS, scratch)
    return answers


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_vllm_says_what_the_reference_says(
    engines: dict[str, Answers],
    views: dict[str, list[Views]],
    flat_model: Path,
    layout: str,
    name: str,
    note: Callable[[str], None],
) -> None:
    found = compare(engines[layout].replies[name], Reference(flat_model), views[name])

    note(f"vLLM and reference, {layout}, {name}: {found}")
    assert found.worst < TOLERANCE
    assert found.same_tokens


@pytest.mark.parametrize("feature", [feature for feature in Feature if feature is not Feature.PICTURE])
@pytest.mark.parametrize("name", ["text", "picture"])
def test_without_a_feature_the_reference_says_something_else(
    engines: dict[str, Answers],
    views: dict[str, list[Views]],
    flat_model: Path,
    name: str,
    feature: Feature,
    note: Callable[[str], None],
) -> None:
    """Else the test above would pass with a vLLM that lacks it."""
    found = compare(engines["flat"].replies[name], Reference(flat_model, [feature]), views[name])

    note(f"without {feature.value}, {name}: {found}")
    assert found.prompt > FAR
    assert found.answer > FAR


@pytest.mark.parametrize("name", [name for name, drawn in PICTURES.items() if drawn])
def test_without_the_picture_the_reference_says_something_else(
    engines: dict[str, Answers], views: dict[str, list[Views]], flat_model: Path, name: str
) -> None:
    blind = Reference(flat_model, [Feature.PICTURE])

    found = compare(engines["flat"].replies[name], blind, views[name])

    assert found.answer > FAR


def test_another_picture_of_the_same_size_is_another_answer(
    engines: dict[str, Answers], flat_model: Path
) -> None:
    turned = look_at(picture(224, 224).rotate(90))

    found = compare(engines["flat"].replies["picture"], Reference(flat_model), [turned])

    assert found.answer > FAR


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_prompt_is_what_the_tokenizer_file_and_the_rules_for_pictures_make_of_it(
    engines: dict[str, Answers], views: dict[str, list[Views]], flat_model: Path, name: str
) -> None:
    expected = prompt_ids(flat_model, TEXTS[name], views[name])

    assert engines["flat"].replies[name].prompt == expected


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_parameter_is_filled(engines: dict[str, Answers], layout: str) -> None:
    parameters = engines[layout].parameters
    assert [name for name, value in parameters.items() if bool(value.isnan().any())] == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_tensor_but_those_of_mtp_is_in_a_parameter_and_nothing_else_is(
    engines: dict[str, Answers], flat_model: Path, layout: str
) -> None:
    """By value alone: the bytes of a tensor, or of each of its experts, in the bytes of a parameter."""
    parameters = [value.numpy().tobytes() for value in engines[layout].parameters.values()]
    found, absent = 0, []
    for name, tensor in read_weights(flat_model).items():
        pieces = tensor.unbind() if ".moe." in name and tensor.dim() == 3 else [tensor]
        contents = [piece.contiguous().numpy().tobytes() for piece in pieces]
        if all(any(content in parameter for parameter in parameters) for content in contents):
            found += sum(map(len, contents))
        else:
            absent.append(name)

    assert sorted(absent) == sorted(mtp_tensors(layers=(5, 6, 7)))
    assert found == sum(map(len, parameters))


def mtp_tensors(layers: tuple[int, ...]) -> list[str]:
    """What the published checkpoint holds for each layer of speculative decoding: 17 tensors."""
    norms = ("enorm", "hnorm", "input_layernorm", "post_attention_layernorm")
    attention = ("q_proj", "k_proj", "v_proj", "o_proj", "g_proj", "q_norm", "k_norm")
    parts = [
        *norms,
        "eh_proj",
        *(f"self_attn.{part}" for part in attention),
        *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
        *(f"transformer.shared_head.{part}" for part in ("norm", "output")),
    ]
    return [f"model.layers.{layer}.{part}.weight" for layer in layers for part in parts]


class Nudged(Reference):
    """Counts the tokens whose experts would be others if rounding moved each value by ten times its error."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.wavering = 0

    def route(self, index: int, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, chosen = super().route(index, x)
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(index))
        _, otherwise = super().route(index, x + 1e-5 * noise)
        self.wavering += int((chosen.sort().values != otherwise.sort().values).any(-1).sum())
        return weights, chosen


@pytest.mark.parametrize("name", QUESTIONS)
def test_no_choice_of_experts_hangs_on_rounding(
    views: dict[str, list[Views]], flat_model: Path, name: str
) -> None:
    """Else the same numbers on another processor could take another expert, and be far off."""
    nudged = Nudged(flat_model)

    nudged.log_probabilities(prompt_ids(flat_model, TEXTS[name], views[name]), views[name])

    assert nudged.wavering == 0


def test_both_layouts_give_the_same_numbers(engines: dict[str, Answers]) -> None:
    flat, grouped = (engines[layout] for layout in LAYOUTS)

    assert grouped.replies == flat.replies
    assert all(torch.equal(value, grouped.parameters[name]) for name, value in flat.parameters.items())


def test_without_the_plugin_a_cpu_refuses_the_model(
    sandbox_python: Path, patched_root: Path, flat_model: Path, tmp_path: Path
) -> None:
    """So it is off unless asked for, and it is needed: vLLM's own routing on a CPU wants a softmax."""
    settings = environment(tmp_path, patched_root, plugin=False)

    with pytest.raises(EngineFailed, match='assert scoring_func == "softmax"'):
        ask_engine(sandbox_python, settings, flat_model, {"text": QUESTIONS["text"]}, tmp_path)
