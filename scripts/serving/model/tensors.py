# SPDX-License-Identifier: Apache-2.0
"""The tensors that a checkpoint holds against those that its config calls for.

vLLM 0.20.2 loads a checkpoint that lacks a ``q_proj`` or a whole ``moe.up_proj`` without a
word, and serves what the memory happened to hold. So each one is looked for here, by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from serving.findings import Finding, counted, note, ok, problem, warning

from . import experts
from .model_config import ModelConfig
from .safetensors_header import Tensor
from .shards import INDEX, Shards
from .weights import Part, Weight, flat_name, is_silently_ignored

_FLOATS = frozenset({"BF16", "F16", "F32", "F64"})
_AGAIN = "fetch the shard that holds it again, or the whole checkpoint"
_UNUSED = "rotary_emb.inv_freq"
"""Old checkpoints carry it; every loader of vLLM leaves it out."""


@dataclass(frozen=True)
class Found:
    """A tensor of the files: ``name`` as written there."""

    name: str
    shard: str
    tensor: Tensor


def check(config: ModelConfig, shards: Shards) -> tuple[Finding, ...]:
    """All findings about names, shapes and types; an unusable shard speaks for what it should hold."""
    found = [
        Found(name, shard, tensor)
        for shard, header in shards.headers.items()
        for name, tensor in header.tensors.items()
    ]
    by_name: dict[str, Found] = {}
    for item in found:
        by_name.setdefault(flat_name(item.name), item)
    listed = _names(shards)
    wanted = {weight.name: weight for weight in experts.expected_beside(config, listed)}
    findings = [
        *_duplicates(found),
        *experts.check(by_name, listed, wanted),
        *_index_against_files(shards, found),
        *_missing(wanted, by_name, shards),
        *_unknown(wanted, by_name),
        *_shapes(wanted, by_name),
        *_types(wanted, by_name),
    ]
    whole = not shards.faults and not any(finding.cure for finding in findings)
    return (_summary(wanted, found, shards), *findings) if whole else tuple(findings)


def _names(shards: Shards) -> frozenset[str]:
    """Every flat name that the index or a readable shard has."""
    held = (name for header in shards.headers.values() for name in header.tensors)
    return frozenset(flat_name(name) for name in (*held, *shards.index))


def bytes_to_fetch(config: ModelConfig | None, shards: Shards) -> int | None:
    """What a download still lacks; None if nothing is missing, or nothing can tell.

    A shard that is cut short, or a git-lfs pointer, says itself what is missing. For any other
    it is the sizes of its tensors, by the config: the least that it can be.
    """
    exact = {name: f.missing_bytes for name, f in shards.faults.items() if f.missing_bytes is not None}
    total = sum(exact.values())
    if config is not None and (len(exact) < len(shards.faults) or not shards.headers):
        places = {flat_name(name): shard for name, shard in shards.index.items()}
        present = {flat_name(name) for header in shards.headers.values() for name in header.tensors}
        for weight in experts.expected_beside(config, _names(shards)):
            place = places.get(weight.name)
            listed = place is not None or not shards.index
            if listed and weight.name not in present and place not in exact:
                total += weight.bytes_on_disk
    return total or None


def _summary(wanted: Mapping[str, Weight], found: list[Found], shards: Shards) -> Finding:
    size = sum(item.tensor.bytes_on_disk for item in found)
    dtypes = Counter(item.tensor.dtype for item in found)
    loaded = sum(weight.part is not Part.MTP for weight in wanted.values())
    mtp = sum(flat_name(item.name) in wanted for item in found) - loaded
    types = ", ".join(f"{count} {dtype}" for dtype, count in dtypes.most_common())
    what = (
        f"{len(found)} tensors in {counted(len(shards.headers), 'shard')}, {size} bytes "
        f"({size / 2**30:.2f} GiB; {types}); all {loaded} that vLLM loads are there, "
        f"with the shapes that config.json calls for; "
        f"{mtp} of the MTP layers are not loaded"
    )
    return ok("tensors", "weights", what)


def _duplicates(found: Iterable[Found]) -> Iterator[Finding]:
    places: dict[str, list[Found]] = {}
    for item in found:
        places.setdefault(flat_name(item.name), []).append(item)
    twice = [
        f"{name} in {', '.join(i.shard for i in items)}" for name, items in places.items() if len(items) > 1
    ]
    own = ((name, expert.packed) for name in places if (expert := experts.parse(name)))
    twice += [f"{name} beside {packed}, the same slice" for name, packed in own if packed in places]
    if twice:
        what = f"{len(twice)} tensors are there twice; whichever vLLM reads last counts"
        yield problem("tensor-duplicate", "weights", what, "remove the files that do not belong here", twice)


def _index_against_files(shards: Shards, found: Iterable[Found]) -> Iterator[Finding]:
    """The index against the shards that could be read."""
    places = {(item.name, item.shard) for item in found}
    absent = [
        f"{name} is not in {shard}"
        for name, shard in shards.index.items()
        if shard in shards.headers and (name, shard) not in places
    ]
    if absent:
        what = f"puts {len(absent)} tensors in shards that do not hold them: they are of two checkpoints"
        yield problem("index-differs", INDEX, what, "fetch the index and the shards again", absent)
    unlisted = [f"{item.name} in {item.shard}" for item in found if item.name not in shards.index]
    if shards.index and unlisted:
        what = f"does not name {len(unlisted)} tensors of the shards; vLLM reads them all the same"
        yield note("index-short", INDEX, what, details=unlisted)
    size = sum(item.tensor.bytes_on_disk for item in found)
    if shards.index_total is not None and not shards.faults and size != shards.index_total:
        what = f"says {shards.index_total} bytes in all, the shards hold {size}"
        yield note("index-total", INDEX, what)


def _missing(wanted: Mapping[str, Weight], by_name: Mapping[str, Found], shards: Shards) -> Iterator[Finding]:
    in_unusable = {flat_name(name) for name, shard in shards.index.items() if shard in shards.faults}
    there = by_name.keys() | in_unusable | experts.quantised_weights(by_name)
    absent = [weight for weight in wanted.values() if weight.name not in there]
    loaded = [weight for weight in absent if weight.part is not Part.MTP]
    if loaded:
        silent = sum(weight.shares_parameter for weight in loaded)
        what = f"{len(loaded)} tensors that this config calls for are nowhere"
        if silent:
            what += f"; vLLM would not say a word about {'it' if len(loaded) == 1 else f'{silent} of them'}"
        yield problem("tensor-missing", "weights", what, _AGAIN, experts.grouped(loaded))
    mtp = [weight.name for weight in absent if weight.part is Part.MTP]
    if mtp:
        what = f"{len(mtp)} tensors of the MTP layers are not there; this set does not load them"
        yield note("tensor-missing-mtp", "weights", what, details=mtp)


def _unknown(wanted: Mapping[str, Weight], by_name: Mapping[str, Found]) -> Iterator[Finding]:
    extra = [
        (flat, f"{item.name} in {item.shard}")
        for flat, item in by_name.items()
        if flat not in wanted and _UNUSED not in flat and not _is_told_elsewhere(flat, by_name, wanted)
    ]
    ignored = [text for flat, text in extra if is_silently_ignored(flat)]
    if ignored:
        what = f"{len(ignored)} tensors fit no parameter of this config; vLLM leaves them out without a word"
        cure = "compare config.json and weights: they may belong to two models"
        yield warning("tensor-unknown", "weights", what, cure, ignored)
    fatal = [text for flat, text in extra if not is_silently_ignored(flat)]
    if fatal:
        what = (
            f'{len(fatal)} tensors fit no parameter: vLLM stops with "There is no module or parameter named"'
        )
        cure = "fetch config.json and the weights again, from one place"
        yield problem("tensor-unknown", "weights", what, cure, fatal)


def _is_told_elsewhere(flat: str, by_name: Mapping[str, Found], wanted: Mapping[str, Weight]) -> bool:
    """An expert's own tensor about which another finding speaks: a scale, one there twice, one too many."""
    found = experts.parse(flat)
    return found is not None and (
        not found.is_weight or found.packed in by_name or experts.is_beyond(found, wanted)
    )


def _shapes(wanted: Mapping[str, Weight], by_name: Mapping[str, Found]) -> Iterator[Finding]:
    wrong = []
    for name, item in by_name.items():
        weight = wanted.get(name)
        if weight and weight.shape != item.tensor.shape:
            wrong.append(f"{item.name} in {item.shard}: {_difference(weight, item.tensor)}")
    if wrong:
        what = f"{len(wrong)} tensors have other shapes than config.json calls for"
        yield problem("tensor-shape", "weights", what, "fetch config.json and weights from one place", wrong)


def _difference(weight: Weight, tensor: Tensor) -> str:
    experts = len(weight.shape) == 3 and weight.shape[1:] == tensor.shape[1:]
    if experts:
        return f"{tensor.shape[0]} experts, config.json says {weight.shape[0]}"
    return f"{list(tensor.shape)}, config.json calls for {list(weight.shape)}"


def _types(wanted: Mapping[str, Weight], by_name: Mapping[str, Found]) -> Iterator[Finding]:
    known = [(wanted[name], item) for name, item in by_name.items() if name in wanted]
    odd = [f"{item.name} {item.tensor.dtype}" for _, item in known if item.tensor.dtype not in _FLOATS]
    if odd:
        what = (
            f"{len(odd)} tensors are no 16 or 32 bit floats: quantised weights, which this set does not serve"
        )
        yield problem("tensor-type", "weights", what, "serve the bfloat16 checkpoint", odd)
    other = Counter(
        f"{item.tensor.dtype} instead of {weight.dtype}"
        for weight, item in known
        if item.tensor.dtype in _FLOATS and item.tensor.dtype != weight.dtype
    )
    if other:
        listed = ", ".join(f"{count} in {change}" for change, count in other.items())
        what = f"not stored as published ({listed}); vLLM converts each to the type that it serves in"
        yield note("tensor-type", "weights", what)
