# SPDX-License-Identifier: Apache-2.0
"""The routed experts of a checkpoint: packed, one tensor for all of them, or each with tensors of its own.

vLLM 0.20.2 reads both layouts, mixed as they may be, and fills its parameters slice by slice. It
looks for none of the slices: one that no tensor brings stays as the memory happened to be. So what
is counted here is slices, an expert's part of one projection, whichever layout holds it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace

from serving.findings import Finding, problem, warning

from .model_config import ModelConfig
from .weights import Split, Weight, expected

_NAME = re.compile(
    r"(?P<moe>model\.layers\.\d+\.moe\.)experts\.(?P<expert>\d{1,9})\."
    r"(?P<projection>(?:gate|up|down)_proj)\.(?P<kind>.+)"
)
_WEIGHT = "weight"
_VALUES = (_WEIGHT, "weight_packed", "qweight")
"""Kinds that hold an expert's numbers, in vLLM's, compressed-tensors' and GPTQ's names; others scale them."""


@dataclass(frozen=True)
class ExpertName:
    """The flat name of one expert's own tensor. ``kind`` is ``weight``, ``weight_scale`` and the like."""

    moe: str
    """``model.layers.N.moe.``"""
    expert: int
    projection: str
    kind: str

    @property
    def packed(self) -> str:
        """The tensor of all experts that this one would be a slice of."""
        return f"{self.moe}{self.projection}.{self.kind}"

    @property
    def is_weight(self) -> bool:
        return self.kind == _WEIGHT

    @property
    def values(self) -> tuple[str, ...]:
        """The tensors that a scale or an offset can belong to."""
        return tuple(f"{self.moe}experts.{self.expert}.{self.projection}.{kind}" for kind in _VALUES)

    @property
    def weight(self) -> str:
        """This expert's unquantised weight."""
        return self.values[0]


def parse(flat: str) -> ExpertName | None:
    """The parts of a name in the flat layout; None for any other tensor."""
    match = _NAME.fullmatch(flat)
    return (
        ExpertName(match["moe"], int(match["expert"]), match["projection"], match["kind"]) if match else None
    )


def expected_beside(config: ModelConfig, names: Set[str]) -> tuple[Weight, ...]:
    """`weights.expected`, with the experts in the layout that each layer of these flat names has.

    A layer with any expert's own tensor is to have every expert's, of each of the three
    projections that is not there packed.
    """
    layers = {found.moe for name in names if (found := parse(name))}
    return tuple(one for weight in expected(config) for one in _in_layout(weight, layers, names))


def _in_layout(weight: Weight, layers: Set[str], names: Set[str]) -> Iterator[Weight]:
    before, _, projection = weight.name.rpartition("moe.")
    moe = f"{before}moe."
    if weight.split is not Split.EXPERTS or moe not in layers or weight.name in names:
        yield weight
        return
    for expert in range(weight.shape[0]):
        name = f"{moe}experts.{expert}.{projection}"
        yield replace(weight, name=name, shape=weight.shape[1:], shares_parameter=True)


def check(names: Iterable[str], listed: Set[str], wanted: Mapping[str, Weight]) -> Iterator[Finding]:
    """What is wrong with experts that have tensors of their own, by their flat names alone.

    ``listed`` are also the names of tensors that are to come: a scale whose weight is in a shard
    that is missing is not alone.
    """
    own = {name: found for name in names if (found := parse(name))}
    quantised = sorted(name for name, found in own.items() if not found.is_weight)
    alone = [name for name in quantised if listed.isdisjoint(own[name].values)]
    scaled = sorted(set(quantised) - set(alone))
    if scaled:
        what = f"{len(scaled)} tensors are of quantised experts, which this set does not serve"
        yield problem("tensor-type", "weights", what, "serve the bfloat16 checkpoint", scaled)
    if alone:
        what = (
            f"{len(alone)} scales of experts have no weight beside them; vLLM leaves them out without a word"
        )
        cure = "fetch the weights again, from one place"
        yield problem("expert-scale-alone", "weights", what, cure, alone)
    beyond = sorted(name for name, found in own.items() if found.is_weight and is_beyond(found, wanted))
    if beyond:
        what = (
            f"{len(beyond)} tensors are of experts with numbers that config.json does not have; vLLM leaves "
            "them out without a word"
        )
        cure = "compare moe_num_experts in config.json and the weights: they may belong to two models"
        yield warning("expert-number", "weights", what, cure, beyond)


def is_beyond(found: ExpertName, wanted: Mapping[str, Weight]) -> bool:
    """Expert 288 of 288: its layer has experts, and fewer than its number says."""
    packed = wanted.get(found.packed)
    if packed is not None:
        return found.expert >= packed.shape[0]
    first = replace(found, expert=0)
    return first.weight in wanted and found.weight not in wanted


def quantised_weights(names: Iterable[str]) -> frozenset[str]:
    """The weights that quantised values stand for; they are not missing, whatever else is."""
    found = (parse(name) for name in names)
    return frozenset(own.weight for own in found if own and own.kind in _VALUES)


def grouped(missing: Iterable[Weight]) -> list[str]:
    """One line a tensor, and one for all the experts that lack the same projection of a layer."""
    groups: dict[str, dict[int, Weight]] = {}
    for weight in missing:
        found = parse(weight.name)
        groups.setdefault(found.packed if found else weight.name, {})[found.expert if found else 0] = weight
    return [_together(weights) for weights in groups.values()]


def _together(weights: Mapping[int, Weight]) -> str:
    first = next(iter(weights.values()))
    found = parse(first.name)
    if found is None or len(weights) == 1:
        return described(first)
    name = f"{found.moe}experts.{{{_ranges(weights)}}}.{found.projection}.{found.kind}"
    return f"{name} {first.dtype} {list(first.shape)}: {len(weights)} of them"


def _ranges(numbers: Iterable[int]) -> str:
    """ "0-3,7" """
    spans: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def described(weight: Weight) -> str:
    return f"{weight.name} {weight.dtype} {list(weight.shape)}"
