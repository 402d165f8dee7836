# SPDX-License-Identifier: Apache-2.0
"""Write a Step-3.7 checkpoint of under three megabytes that the real vLLM serves on two CPU cores.

    python -m tiny.checkpoint OUT [--seed N] [--layout flat|grouped]

To be run with ``tests`` on the path, by the sandbox's interpreter. The folder has what the
published one has; the weights are random, and so is every word that the model says. The same
seed gives the same bytes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from safetensors.torch import save

from target.vllm_half_checkpoint import Layout, Size, rename
from tiny.config import TINY, write_configs
from tiny.tokenizer import HERE, write_tokenizer
from tiny.weights import tensors

SHARD_BYTES = 1 << 20
Shard = dict[str, torch.Tensor]
Named = Iterable[tuple[str, torch.Tensor]]
Change = Callable[[Named], Named]


def write_checkpoint(
    folder: Path,
    seed: int = 0,
    layout: Layout = Layout.FLAT,
    size: Size = TINY,
    change: Change = lambda named: named,
) -> None:
    """The whole model folder; ``folder`` is made, and must not hold anything yet.

    ``change`` is given every tensor with its name in the flat layout, and gives those to be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty")
    for name, content in write_configs(size).items():
        write_json(folder / name, content)
    shutil.copyfile(HERE / "configuration_step3p7.py", folder / "configuration_step3p7.py")
    write_tokenizer(folder)
    changed = change(tensors(seed, Layout.FLAT, size))
    write_shards(folder, ((rename(name, layout), tensor) for name, tensor in changed))


def write_shards(folder: Path, named: Named) -> None:
    """``model-00001.safetensors`` and so on, and the index."""
    places: dict[str, str] = {}
    total = 0
    for number, shard in enumerate(split(named), start=1):
        file = f"model-{number:05}.safetensors"
        (folder / file).write_bytes(save(shard, metadata={"format": "pt"}))  # save_file would make it 0600
        places |= dict.fromkeys(shard, file)
        total += sum(tensor.nbytes for tensor in shard.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    write_json(folder / "model.safetensors.index.json", index)


def split(named: Named) -> list[Shard]:
    """In the order given, each shard as full as `SHARD_BYTES` allows."""
    shards: list[Shard] = [{}]
    used = 0
    for name, tensor in named:
        if shards[-1] and used + tensor.nbytes > SHARD_BYTES:
            shards.append({})
            used = 0
        shards[-1][name] = tensor
        used += tensor.nbytes
    return shards


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", "utf-8")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tiny.checkpoint", description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT", help="a folder that does not exist, or is empty")
    parser.add_argument("--seed", type=int, default=0, help="another number, other weights (default: 0)")
    parser.add_argument(
        "--layout",
        choices=[layout.value for layout in Layout],
        default=Layout.FLAT.value,
        help="tensors named model.layers.* (flat) or model.language_model.layers.* (grouped)",
    )
    chosen = parser.parse_args(arguments)
    try:
        write_checkpoint(chosen.out, chosen.seed, Layout(chosen.layout))
    except OSError as error:
        print(f"tiny.checkpoint: {error}; nothing was written over. Next: name a new folder", file=sys.stderr)
        return 1
    size = sum(file.stat().st_size for file in chosen.out.iterdir())
    print(f"{chosen.out}: {size / 1e6:.1f} MB in {len(list(chosen.out.iterdir()))} files")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
