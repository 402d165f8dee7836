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
_FEW = 3
"""Experts that a line names one by one."""


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


def check(names: Iterable[str], wanted: Mapping[str, Weight]) -> Iterator[Finding]:
    """What is wrong with experts that have tensors of their own, by their flat names alone."""
    present = frozenset(names)
    own = {name: found for name in present if (found := parse(name))}
    quantised = sorted(name for name, found in own.items() if not found.is_weight)
    alone = [name for name in quantised if not any(value in present for value in own[name].values)]
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


def grouped(missing: Iterable[Weight]) -> list[str]:
    """One line a tensor, and one for the many experts of one projection that a layer lacks."""
    lines: list[str] = []
    groups: dict[str, list[Weight]] = {}
    for weight in missing:
        found = parse(weight.name)
        groups.setdefault(found.packed if found else weight.name, []).append(weight)
    for weights in groups.values():
        first = parse(weights[0].name)
        if first is None or len(weights) <= _FEW:
            lines += [described(weight) for weight in weights]
            continue
        numbers = [found.expert for weight in weights if (found := parse(weight.name))]
        span = f"{first.moe}experts.{{{numbers[0]}..{numbers[-1]}}}.{first.projection}.{first.kind}"
        lines.append(f"{span}: {len(weights)} of them")
    return lines


def described(weight: Weight) -> str:
    return f"{weight.name} {weight.dtype} {list(weight.shape)}"
