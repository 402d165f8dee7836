# SPDX-License-Identifier: Apache-2.0
"""Model folders other than the plain one: with the code that a published folder brings, and damaged ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from target.conftest import PROJECT

REMOTE_CODE = PROJECT / "tests" / "e2e" / "remote_code"
INDEX = "model.safetensors.index.json"
CLASSES = {
    "AutoModelForCausalLM": "modeling_step3p7.Step3p7ForConditionalGeneration",
    "AutoProcessor": "processing_step3.Step3VLProcessor",
}

Tensors = dict[str, Tensor]
Damage = Callable[[Tensors], None]


def with_remote_code(model: Path, folder: Path) -> Path:
    """A copy whose ``auto_map`` names a model and a processor of its own."""
    shutil.copytree(model, folder)
    shutil.copytree(REMOTE_CODE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config["auto_map"] |= CLASSES
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    processor = {"auto_map": {"AutoProcessor": CLASSES["AutoProcessor"]}}
    (folder / "processor_config.json").write_text(json.dumps(processor), "utf-8")
    return folder


def damaged(model: Path, folder: Path, damage: Damage) -> Path:
    """A copy with other tensors, in one shard, and an index that knows of it."""
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    tensors: Tensors = {}
    for shard in model.glob("*.safetensors"):
        tensors |= load_file(shard)
    damage(tensors)
    file = "model-00001.safetensors"
    save_file(tensors, folder / file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict.fromkeys(sorted(tensors), file)}
    (folder / INDEX).write_text(json.dumps(index), "utf-8")
    return folder
