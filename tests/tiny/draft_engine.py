# SPDX-License-Identifier: Apache-2.0
"""One engine of the real vLLM in a process of its own, that drafts or does not: tasks one after the other.

    python -m tiny.draft_engine ASKED.json ANSWERED.json

Beside the answers it tells what was drafted (`tiny.drafting.Proposal`), vLLM's own counters, and which
layers share a KV cache group. A task may be done by a mutant, see `tiny.draft_mutants`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tiny.drafting import Proposal
from tiny.engine import ENGINE, Message

Sampling = dict[str, Any]

GREEDY: Sampling = {"temperature": 0, "logprobs": 0, "ignore_eos": True}

COUNTERS = {
    "drafts": "vllm:spec_decode_num_drafts",
    "accepted": "vllm:spec_decode_num_accepted_tokens_per_pos",
    "preemptions": "vllm:num_preemptions",
    "cached": "vllm:prefix_cache_hits",
}


@dataclass(frozen=True)
class Asked:
    """A conversation, and vLLM's sampling parameters."""

    messages: list[Message]
    sampling: Sampling


@dataclass(frozen=True)
class Task:
    """Asked all at once. With ``abort_after`` they are given up after so many steps."""

    asked: dict[str, Asked]
    mutant: str | None = None
    abort_after: int | None = None


@dataclass(frozen=True)
class Said:
    """Of one of the ``n`` answers; the log-probability of each token, and why it ends."""

    tokens: list[int]
    log_probabilities: list[float]
    finish: str | None


@dataclass(frozen=True)
class Done:
    """``answers`` by question. ``proposals`` by question, where each has one answer."""

    answers: dict[str, list[Said]]
    prompts: dict[str, list[int]] = field(default_factory=dict)
    proposals: dict[str, list[Proposal]] = field(default_factory=dict)
    counted: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Session:
    groups: list[list[str]]
    done: dict[str, Done]


def write_tasks(path: Path, model: Path, tasks: dict[str, Task], options: dict[str, Any]) -> None:
    written = {name: asdict(task) for name, task in tasks.items()}
    path.write_text(json.dumps({"model": str(model), "options": options, "tasks": written}), "utf-8")


def read_session(path: Path) -> Session:
    content = json.loads(path.read_text("utf-8"))
    return Session(content["groups"], {name: read_done(done) for name, done in content["done"].items()})


def read_done(done: dict[str, Any]) -> Done:
    return Done(
        answers={name: [Said(**said) for said in answers] for name, answers in done["answers"].items()},
        prompts=done["prompts"],
        proposals={name: [Proposal(**each) for each in made] for name, made in done["proposals"].items()},
        counted=done["counted"],
    )


def main(arguments: list[str]) -> None:
    asked, answered = (Path(argument) for argument in arguments)
    content = json.loads(asked.read_text("utf-8"))
    tasks = {name: read_task(task) for name, task in content["tasks"].items()}
    session = Engine(content["model"], content["options"]).run(tasks)
    answered.write_text(json.dumps(asdict(session)), "utf-8")


def read_task(task: dict[str, Any]) -> Task:
    asked = {name: Asked(**question) for name, question in task["asked"].items()}
    return Task(asked, task["mutant"], task["abort_after"])


class Engine:
    """In this process, or (with the option ``distributed_executor_backend``) its workers elsewhere:
    then neither proposals nor groups are told."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        from vllm import LLM
        from vllm.v1.executor.uniproc_executor import UniProcExecutor

        if options.pop("ascend", False):
            from tiny.ascend_on_cpu import hang_in

            hang_in()
        here = {"distributed_executor_backend": UniProcExecutor, "disable_log_stats": False}
        self.llm = LLM(model, **here | ENGINE | options)
        self.tokenizer = self.llm.get_tokenizer()
        executor = self.llm.llm_engine.engine_core.engine_core.model_executor
        self.runner: Any = (
            executor.driver_worker.worker.model_runner if isinstance(executor, UniProcExecutor) else None
        )
        self.made: dict[str, list[Proposal]] = {}

    def run(self, tasks: dict[str, Task]) -> Session:
        watching = watched(self.made, self.runner) if hasattr(self.runner, "drafter") else nullcontext()
        with watching:
            done = {name: self.do(task) for name, task in tasks.items()}
        groups = self.runner.kv_cache_config.kv_cache_groups if self.runner else []
        return Session([list(group.layer_names) for group in groups], done)

    def do(self, task: Task) -> Done:
        from tiny.draft_mutants import MUTANTS

        self.made.clear()
        before = self.counters()
        with MUTANTS[task.mutant](self.runner.drafter) if task.mutant else nullcontext():
            if task.abort_after is not None:
                self.give_up(task)
                return Done({})
            found = self.ask(task)
        counted = {name: subtract(now, before.get(name, [])) for name, now in self.counters().items()}
        names = {request.request_id.split("-")[0]: name for name, request in found.items()}
        made = {names.get(request.split("-")[0]): proposals for request, proposals in self.made.items()}
        return Done(
            answers={name: [said(completion) for completion in found[name].outputs] for name in task.asked},
            prompts={name: list(found[name].prompt_token_ids) for name in task.asked},
            proposals={name: proposals for name, proposals in made.items() if name},
            counted=counted,
        )

    def ask(self, task: Task) -> dict[str, Any]:
        from vllm import SamplingParams

        sampling = [SamplingParams(**parameters(asked.sampling)) for asked in task.asked.values()]
        conversations = [asked.messages for asked in task.asked.values()]
        outputs = self.llm.chat(conversations, sampling, use_tqdm=False)
        return dict(zip(task.asked, outputs, strict=True))

    def give_up(self, task: Task) -> None:
        """Add them as `LLM.chat` does, and abort them with answers half said."""
        from vllm import SamplingParams

        engine = self.llm.llm_engine
        for name, asked in task.asked.items():
            prompt = self.tokenizer.apply_chat_template(
                asked.messages, add_generation_prompt=True, tokenize=False
            )
            engine.add_request(f"given up {name}", prompt, SamplingParams(**parameters(asked.sampling)))
        for _ in range(task.abort_after or 0):
            engine.step()
        engine.abort_request([f"given up {name}" for name in task.asked])
        while engine.has_unfinished_requests():
            engine.step()

    def counters(self) -> dict[str, list[int]]:
        """Those of `COUNTERS` that vLLM has; one number, or one for each place of a draft."""
        found = {metric.name: metric for metric in self.llm.get_metrics()}
        counted = {}
        for name, metric in COUNTERS.items():
            if metric in found:
                counted[name] = getattr(found[metric], "values", None) or [found[metric].value]
        return counted


def subtract(now: list[int], before: list[int]) -> list[int]:
    return [count - earlier for count, earlier in zip(now, before or [0] * len(now), strict=True)]


def parameters(sampling: Sampling) -> Sampling:
    from vllm.sampling_params import StructuredOutputsParams

    shape = sampling.get("structured_outputs")
    return sampling | ({"structured_outputs": StructuredOutputsParams(**shape)} if shape else {})


def said(completion: Any) -> Said:
    tokens = list(completion.token_ids)
    steps = completion.logprobs or []
    return Said(
        tokens=tokens,
        log_probabilities=[step[token].logprob for token, step in zip(tokens, steps, strict=bool(steps))],
        finish=completion.finish_reason,
    )


@contextmanager
def watched(made: dict[str, list[Proposal]], runner: Any) -> Iterator[None]:
    """Every call of ``draft``, one proposal for each request."""
    drafter = type(runner.drafter)
    draft = drafter.draft

    def watching(
        self: Any, ids: Any, positions: Any, hidden: Any, newest: Any, last: Any, common: Any
    ) -> Any:
        starts = common.query_start_loc.tolist()
        ends = last.tolist() if last is not None else [start - 1 for start in starts[1:]]
        windows = [ids[start : end + 1].tolist() for start, end in zip(starts[:-1], ends, strict=True)]
        first = [int(positions[start]) for start in starts[:-1]]
        drafts = draft(self, ids, positions, hidden, newest, last, common)
        rows = zip(runner.input_batch.req_ids, first, windows, newest.tolist(), drafts.tolist(), strict=True)
        for request, *row in rows:
            made.setdefault(request, []).append(Proposal(*row))
        return drafts

    drafter.draft = watching
    try:
        yield
    finally:
        drafter.draft = draft


if __name__ == "__main__":
    main(sys.argv[1:])
