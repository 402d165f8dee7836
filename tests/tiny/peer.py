# SPDX-License-Identifier: Apache-2.0
"""The same checkpoint by a model that none of us wrote: ``step3p7`` of Hugging Face transformers.

    python -m tiny.peer PROMPTS.json ANSWERS.safetensors

To be run with transformers 5.23 or later (`tiny.peer_process` sees to it): 5.16 to 5.22 have the
two axes of the tower's rotation swapped. It is shown the views of `tiny.pictures`, for its own
processor scales pictures in whole steps of brightness and the target's does not.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tiny.conversations import picture
from tiny.pictures import Size, look_at


@dataclass(frozen=True)
class Prompt:
    """Token ids, placeholders of pictures among them, and the sizes of the pictures."""

    tokens: Sequence[int]
    pictures: Sequence[Size] = ()


def write_prompts(path: Path, model: Path, prompts: dict[str, Prompt]) -> None:
    asked = {name: asdict(prompt) for name, prompt in prompts.items()}
    path.write_text(json.dumps({"model": str(model), "prompts": asked}), "utf-8")


def main(arguments: list[str]) -> None:
    asked, answers = (Path(argument) for argument in arguments)
    content = json.loads(asked.read_text("utf-8"))
    model = load(content["model"])
    prompts = {name: Prompt(**prompt) for name, prompt in content["prompts"].items()}
    save_file({name: log_probabilities(model, prompt) for name, prompt in prompts.items()}, answers)


def load(folder: str) -> Any:
    from transformers import Step3p7ForConditionalGeneration

    model, report = Step3p7ForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    if report["missing_keys"] or report["mismatched_keys"]:
        raise ValueError(f"not loaded: {report}")
    return model.eval()


def log_probabilities(model: Any, prompt: Prompt) -> torch.Tensor:
    """``[T, vocabulary]``."""
    inputs: dict[str, Any] = {"input_ids": torch.tensor([prompt.tokens])}
    views = [look_at(picture(*size)) for size in prompt.pictures]
    if views:
        inputs["pixel_values"] = torch.stack([seen.whole for seen in views])
        inputs["num_local_patches"] = [len(seen.crops) for seen in views]
    crops = [crop for seen in views for crop in seen.crops]
    if crops:
        inputs["pixel_values_local"] = torch.stack(crops)
    with torch.inference_mode():
        [logits] = model(**inputs).logits
    return logits.log_softmax(dim=-1).clone()


if __name__ == "__main__":
    main(sys.argv[1:])
