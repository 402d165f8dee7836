# SPDX-License-Identifier: Apache-2.0
"""The whole of Step-3.7 in plain PyTorch, float32: what every other implementation is held against.

Written from the formulas, for reading: one prompt, no cache, no kernels, loops where loops say
it best. It reads a checkpoint's own files and takes nothing from vLLM, transformers, or the kit.

Shapes: ``T`` tokens, ``H`` hidden size, ``N`` heads, ``D`` head size, ``P`` patches, ``W`` tower width.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from tiny.pictures import Views

Weights = dict[str, Tensor]


class Feature(Enum):
    """What can be left out, so that a test can show that it would notice."""

    CLAMP = "the limit of the routed experts"
    SHARED_CLAMP = "the limit of the shared experts"
    GATE = "the gate of each head"
    WINDOW = "the sliding window"
    ROPE_SCALING = "the stretched wavelengths of full layers"
    ROUTER_BIAS = "the router's bias"
    PICTURE = "the features of the pictures"


class Reference:
    """A checkpoint's model, and what it thinks of a prompt."""

    def __init__(self, folder: Path, without: Collection[Feature] = ()) -> None:
        self.config = json.loads((folder / "config.json").read_text("utf-8"))
        self.without = frozenset(without)
        self._weights = read_weights(folder)

    def log_probabilities(self, tokens: Sequence[int], pictures: Sequence[Views] = ()) -> Tensor:
        """``[T, vocabulary]``: for each token, what may come after it and those before it."""
        hidden = zero_centred_norm(
            self.last_layer(tokens, pictures), self._weights["model.norm.weight"], self._eps
        )
        return (hidden @ self._weights["lm_head.weight"].T).log_softmax(dim=-1)

    def last_layer(self, tokens: Sequence[int], pictures: Sequence[Views] = ()) -> Tensor:
        """``[T, H]``: what leaves the last of the main layers."""
        ids = torch.tensor(tokens)
        hidden = self.embed(ids)
        if pictures and Feature.PICTURE not in self.without:
            places = ids == self.config["image_token_id"]
            hidden[places] = torch.cat([self.features(views) for views in pictures])
        for index in range(self.config["text_config"]["num_hidden_layers"]):
            hidden = self.layer(index, hidden)
        return hidden

    def embed(self, ids: Tensor) -> Tensor:
        """``[T]`` to ``[T, H]``; a picture's placeholder is a word like any other here."""
        return self._weights["model.embed_tokens.weight"][ids]

    # --- draft layers ---

    def enter_draft_layer(self, index: int, embedded: Tensor, hidden: Tensor) -> Tensor:
        """``[T, H]`` each: the token that comes next, and what is known here, become the layer's input."""
        draft = Part(self._weights, f"model.layers.{index}.")
        token = zero_centred_norm(embedded, draft["enorm.weight"], self._eps)
        known = zero_centred_norm(hidden, draft["hnorm.weight"], self._eps)
        return torch.cat([token, known], dim=-1) @ draft["eh_proj.weight"].T

    def draft_logits(self, index: int, hidden: Tensor) -> Tensor:
        """``[T, H]`` to ``[T, vocabulary]``, by the head of this draft layer."""
        head = Part(self._weights, f"model.layers.{index}.transformer.shared_head.")
        return zero_centred_norm(hidden, head["norm.weight"], self._eps) @ head["output.weight"].T

    # --- layers ---

    def layer(self, index: int, hidden: Tensor) -> Tensor:
        """``[T, H]`` to ``[T, H]``."""
        layer = Part(self._weights, f"model.layers.{index}.")
        norm = zero_centred_norm(hidden, layer["input_layernorm.weight"], self._eps)
        hidden = hidden + self.attention(index, norm)
        norm = zero_centred_norm(hidden, layer["post_attention_layernorm.weight"], self._eps)
        return hidden + self.feed_forward(index, norm)

    # --- attention ---

    def attention(self, index: int, x: Tensor) -> Tensor:
        text = self.config["text_config"]
        attention = Part(self._weights, f"model.layers.{index}.self_attn.")
        sliding = text["layer_types"][index] == "sliding_attention"
        shape = text["attention_other_setting"] if sliding else text
        heads, groups, size = shape["num_attention_heads"], shape["num_attention_groups"], shape["head_dim"]

        queries = split_heads(x @ attention["q_proj.weight"].T, heads)
        keys = split_heads(x @ attention["k_proj.weight"].T, groups)
        values = split_heads(x @ attention["v_proj.weight"].T, groups)
        queries = zero_centred_norm(queries, attention["q_norm.weight"], self._eps)
        keys = zero_centred_norm(keys, attention["k_norm.weight"], self._eps)
        angles = self.angles(index, len(x))
        queries, keys = rotate_halves(queries, angles), rotate_halves(keys, angles)

        seen = self.seen(sliding, len(x))
        gates = (x @ attention["g_proj.weight"].T).sigmoid()
        results = []
        for head in range(heads):
            group = head // (heads // groups)
            result = attend(queries[head], keys[group], values[group], size, seen)
            if Feature.GATE not in self.without:
                result = result * gates[:, head, None]
            results.append(result)
        return torch.cat(results, dim=-1) @ attention["o_proj.weight"].T

    def seen(self, sliding: bool, length: int) -> Tensor:
        """``[T, T]``: may the token of the row see that of the column? In a window it sees itself, too."""
        distance = torch.arange(length)[:, None] - torch.arange(length)[None, :]
        seen = distance >= 0
        if sliding and Feature.WINDOW not in self.without:
            seen &= distance < self.config["text_config"]["sliding_window"]
        return seen

    def angles(self, index: int, length: int) -> Tensor:
        """``[T, R / 2]``, where R of the head's D values are rotated."""
        text = self.config["text_config"]
        rotated = int(text["head_dim"] * text["partial_rotary_factors"][index])
        frequencies = text["rope_theta"][index] ** -(torch.arange(0, rotated, 2).double() / rotated)
        stretched = text["layer_types"][index] in text["yarn_only_types"]
        if stretched and Feature.ROPE_SCALING not in self.without:
            frequencies = stretch(frequencies, text["rope_scaling"])
        return (torch.arange(length).double()[:, None] * frequencies).float()

    # --- feed-forward ---

    def feed_forward(self, index: int, x: Tensor) -> Tensor:
        text = self.config["text_config"]
        if str(index) not in text["moe_layers_enum"].split(","):
            return self.dense(index, "mlp", x)
        return self.routed_experts(index, x) + self.dense(index, "share_expert", x)

    def dense(self, index: int, name: str, x: Tensor) -> Tensor:
        """The one that every token goes through: a dense layer's, or a MoE layer's shared expert."""
        mlp = Part(self._weights, f"model.layers.{index}.{name}.")
        gate, up = (x @ mlp[f"{part}_proj.weight"].T for part in ("gate", "up"))
        return gated(gate, up, self.limit(index, True)) @ mlp["down_proj.weight"].T

    def moe(self, index: int) -> Part:
        """Router and routed experts."""
        return Part(self._weights, f"model.layers.{index}.moe.")

    def routed_experts(self, index: int, x: Tensor) -> Tensor:
        """Token by token, the weighted sum of what the chosen experts make of it."""
        weights, chosen = self.route(index, x)
        result = torch.zeros_like(x)
        for token in range(len(x)):
            for weight, expert in zip(weights[token], chosen[token], strict=True):
                result[token] += weight * self.expert(index, int(expert), x[token])
        return result

    def expert(self, index: int, expert: int, x: Tensor) -> Tensor:
        """One routed expert on ``[..., H]``."""
        moe = self.moe(index)
        gate, up = (x @ moe[f"{name}_proj.weight"][expert].T for name in ("gate", "up"))
        return gated(gate, up, self.limit(index, False)) @ moe["down_proj.weight"][expert].T

    def route(self, index: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and experts, both ``[T, top_k]``. The bias helps to choose; it does not weigh."""
        text = self.config["text_config"]
        moe = self.moe(index)
        scores = (x @ moe["gate.weight"].T).sigmoid()
        rank = scores if Feature.ROUTER_BIAS in self.without else scores + moe["router_bias"]
        chosen = rank.topk(text["moe_top_k"]).indices
        weights = scores.gather(-1, chosen)
        return weights / weights.sum(-1, keepdim=True) * text["moe_router_scaling_factor"], chosen

    def limit(self, index: int, shared: bool) -> float:
        """Of the gated unit of one layer; infinite where nothing is clamped."""
        if (Feature.SHARED_CLAMP if shared else Feature.CLAMP) in self.without:
            return math.inf
        name = "swiglu_limits_shared" if shared else "swiglu_limits"
        return self.config["text_config"][name][index] or math.inf

    @property
    def _eps(self) -> float:
        return float(self.config["text_config"]["rms_norm_eps"])

    # --- pictures ---

    def features(self, views: Views) -> Tensor:
        """``[tokens, H]``: those of the crops, row by row, and then those of the whole picture."""
        pictures = [*views.crops, views.whole]
        seen = torch.cat([self.tower(picture) for picture in pictures])
        return seen @ self._weights["vit_large_projector.weight"].T

    def tower(self, picture: Tensor) -> Tensor:
        """``[3, S, S]`` to ``[(S / 56) ** 2, 4 W]``."""
        vision = self.config["vision_config"]
        tower = Part(self._weights, "vision_model.")
        side, grid = vision["patch_size"], picture.shape[-1] // vision["patch_size"]
        patches = picture.unfold(1, side, side).unfold(2, side, side)  # [3, grid, grid, side, side]
        patches = patches.permute(1, 2, 0, 3, 4).reshape(grid * grid, -1)
        x = patches @ tower["conv1.weight"].flatten(1).T
        x = x + places(tower["positional_embedding"], grid)
        x = layer_norm(x, tower, "ln_pre", vision["layer_norm_eps"])
        angles = self.angles_in_the_plane(grid)
        for index in range(vision["layers"]):
            block = Part(self._weights, f"vision_model.transformer.resblocks.{index}.")
            norm = layer_norm(x, block, "ln_1", vision["layer_norm_eps"])
            x = x + block["ls_1.gamma"] * self.tower_attention(block, norm, angles)
            norm = layer_norm(x, block, "ln_2", vision["layer_norm_eps"])
            x = x + block["ls_2.gamma"] * tower_mlp(block, norm)
        image = x.T.reshape(-1, grid, grid)
        for name in ("vit_downsampler1", "vit_downsampler2"):
            image = torch.conv2d(image, tower[f"{name}.weight"], tower[f"{name}.bias"], stride=2, padding=1)
        return image.flatten(1).T

    def tower_attention(self, block: Part, x: Tensor, angles: Tensor) -> Tensor:
        """Every patch sees every other."""
        heads = self.config["vision_config"]["heads"]
        projected = x @ block["attn.in_proj_weight"].T + block["attn.in_proj_bias"]
        queries, keys, values = (split_heads(part, heads) for part in projected.chunk(3, dim=-1))
        queries, keys = rotate_pairs(queries, angles), rotate_pairs(keys, angles)
        everything = torch.ones(len(x), len(x), dtype=torch.bool)
        results = [
            attend(*head, head[0].shape[-1], everything) for head in zip(queries, keys, values, strict=True)
        ]
        return torch.cat(results, dim=-1) @ block["attn.out_proj.weight"].T + block["attn.out_proj.bias"]

    def angles_in_the_plane(self, grid: int) -> Tensor:
        """``[P, D / 2]``: the first half from the patch's column, the second from its row."""
        vision = self.config["vision_config"]
        half = vision["width"] // vision["heads"] // 2
        frequencies = 10000.0 ** -(torch.arange(0, half, 2).double() / half)
        patches = torch.arange(grid * grid)[:, None]
        return torch.cat([patches % grid * frequencies, patches // grid * frequencies], dim=-1).float()


class Part:
    """The weights whose names begin alike."""

    def __init__(self, weights: Weights, prefix: str) -> None:
        self._weights, self._prefix = weights, prefix

    def __getitem__(self, name: str) -> Tensor:
        return self._weights[self._prefix + name]


def read_weights(folder: Path) -> Weights:
    """Every tensor of the index in float32, by its flat name."""
    index = json.loads((folder / "model.safetensors.index.json").read_text("utf-8"))
    found: Weights = {}
    for shard in sorted(set(index["weight_map"].values())):
        found |= {flat(name): tensor.float() for name, tensor in load_file(folder / shard).items()}
    return found


def flat(name: str) -> str:
    """Of the two published ways to name a tensor, the shorter."""
    for prefix in ("model.vision_model.", "model.vit_large_projector."):
        if name.startswith(prefix):
            return name.removeprefix("model.")
    return name.replace("model.language_model.", "model.", 1)


def zero_centred_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square to one, times one plus the weight."""
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * (1 + weight)


def layer_norm(x: Tensor, part: Part, name: str, eps: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()
    return scaled * part[f"{name}.weight"] + part[f"{name}.bias"]


def split_heads(x: Tensor, heads: int) -> Tensor:
    """``[T, N * D]`` to ``[N, T, D]``."""
    return x.reshape(len(x), heads, -1).transpose(0, 1)


def attend(queries: Tensor, keys: Tensor, values: Tensor, size: int, seen: Tensor) -> Tensor:
    """One head: ``[T, D]`` each, ``seen`` ``[T, T]``."""
    scores = (queries @ keys.T / math.sqrt(size)).masked_fill(~seen, -math.inf)
    return scores.softmax(-1) @ values


def rotate_halves(x: Tensor, angles: Tensor) -> Tensor:
    """Value i is turned with value i + R / 2, of the first R of each head; the others stay."""
    turned, kept = x[..., : 2 * angles.shape[-1]], x[..., 2 * angles.shape[-1] :]
    first, second = turned.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin, kept], dim=-1)


def rotate_pairs(x: Tensor, angles: Tensor) -> Tensor:
    """Value 2 i is turned with value 2 i + 1."""
    first, second = x[..., 0::2], x[..., 1::2]
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1).flatten(-2)


def stretch(frequencies: Tensor, scaling: dict[str, Any]) -> Tensor:
    """Llama 3's rule: short wavelengths stay, long ones are stretched by ``factor``, between them a blend."""
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / scaling["factor"]


def gated(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """The gate is limited above, after the SiLU; up on both sides."""
    return (gate * gate.sigmoid()).clamp(max=limit) * up.clamp(-limit, limit)


def tower_mlp(block: Part, x: Tensor) -> Tensor:
    inner = x @ block["mlp.c_fc.weight"].T + block["mlp.c_fc.bias"]
    return (inner * (1.702 * inner).sigmoid()) @ block["mlp.c_proj.weight"].T + block["mlp.c_proj.bias"]


def places(embedding: Tensor, grid: int) -> Tensor:
    """``[G * G, W]`` for a grid of another size: interpolated between the learned places."""
    learned = math.isqrt(len(embedding))
    if learned == grid:
        return embedding
    image = embedding.T.reshape(1, -1, learned, learned)
    [scaled] = torch.nn.functional.interpolate(image, size=(grid, grid), mode="bilinear")
    return scaled.flatten(1).T
