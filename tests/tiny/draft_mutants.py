# SPDX-License-Identifier: Apache-2.0
"""Wrong ways to draft, each of which someone has taken or would take: a test must see them.

By name: a context in which the drafter that it is given does it wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from typing import Any

Mutant = Callable[[Any], AbstractContextManager[None]]


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """On the object itself, whatever its class has."""
    setattr(owner, name, value)
    try:
        yield
    finally:
        delattr(owner, name)


def the_models_table_for_all(drafter: Any) -> AbstractContextManager[None]:
    """What dropping vLLM's assertion on one group leaves: the draft writes into the model's blocks."""
    return replaced(drafter, "attention_metadata", with_tables(drafter, lambda _: 0, lambda _: 0))


def one_draft_groups_table_for_all(drafter: Any) -> AbstractContextManager[None]:
    first = drafter.kv_cache_gid
    return replaced(drafter, "attention_metadata", with_tables(drafter, lambda _: first, lambda _: first))


def no_slot_update(drafter: Any) -> AbstractContextManager[None]:
    """Each group reads its own blocks, and is written to where the first one is."""
    first = drafter.kv_cache_gid
    return replaced(drafter, "attention_metadata", with_tables(drafter, lambda group: group, lambda _: first))


def with_tables(
    drafter: Any, read: Callable[[int], int], written: Callable[[int], int]
) -> Callable[..., Any]:
    def attention_metadata(common: Any, num_tokens: int) -> Any:
        tables = drafter.runner.input_batch.block_table
        found: dict[str, Any] = {}
        for group in drafter.draft_attn_groups:
            of_group = copy(common)
            identifier = group.kv_cache_group_id
            of_group.block_table_tensor = tables[read(identifier)].block_table.gpu[: common.num_reqs]
            of_group.slot_mapping = tables[written(identifier)].slot_mapping.gpu[:num_tokens]
            metadata = group.get_metadata_builder().build(0, of_group)
            found |= dict.fromkeys(group.layer_names, metadata)
        return found

    return attention_metadata


def no_step_for_the_layer(drafter: Any) -> AbstractContextManager[None]:
    """The first draft layer runs three times."""
    forward = drafter.model.forward

    def always_the_first(**inputs: Any) -> Any:
        return forward(**inputs | {"spec_step_idx": 0})

    return replaced(drafter.model, "forward", always_the_first)


def one_head_for_all(drafter: Any) -> AbstractContextManager[None]:
    compute_logits = drafter.model.compute_logits

    def by_the_first(hidden_states: Any, **_: int) -> Any:
        return compute_logits(hidden_states, spec_step_idx=0)

    return replaced(drafter.model, "compute_logits", by_the_first)


@contextmanager
def window_not_rolled(drafter: Any) -> Iterator[None]:
    """From the second draft layer on only the newest token is put in its place."""
    from vllm.v1.spec_decode import step3p7_mtp

    rolled = step3p7_mtp.rolled
    steps = 0

    def rolled_once(ids: Any, newest: Any, last_indices: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps % drafter.num_speculative_tokens == 1:
            return rolled(ids, newest, last_indices)
        ids = ids.clone()
        ids[last_indices] = newest.to(ids.dtype)
        return ids

    step3p7_mtp.rolled = rolled_once
    try:
        yield
    finally:
        step3p7_mtp.rolled = rolled


@contextmanager
def no_draft_near_the_greatest_length(drafter: Any) -> Iterator[None]:
    """vLLM's own rule: as soon as one request might not fit, no window of that step is drafted over."""
    room = drafter.runner.effective_drafter_max_model_len
    drafter.runner.effective_drafter_max_model_len = drafter.runner.max_model_len
    try:
        yield
    finally:
        drafter.runner.effective_drafter_max_model_len = room


MUTANTS: dict[str, Mutant] = {
    mutant.__name__: mutant
    for mutant in (
        the_models_table_for_all,
        one_draft_groups_table_for_all,
        no_slot_update,
        no_step_for_the_layer,
        one_head_for_all,
        window_not_rolled,
        no_draft_near_the_greatest_length,
    )
}
