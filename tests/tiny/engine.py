# SPDX-License-Identifier: Apache-2.0
"""One engine of the real vLLM in a process of its own: loads a folder, answers, and leaves.

    python -m tiny.engine QUESTIONS.json ANSWERS

ANSWERS becomes a folder: ``replies.json``, and ``parameters.safetensors`` with every parameter
as it was right after loading, before vLLM packs it for its kernels; NaN where nothing was loaded.
(With the option ``distributed_executor_backend="mp"`` that happens elsewhere, and the file is absent.)
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ENGINE = {
    "trust_remote_code": True,
    "enforce_eager": True,
    "dtype": "float32",
    "max_model_len": 4096,
    "max_num_batched_tokens": 4096,
    "max_num_seqs": 2,
    "kv_cache_memory_bytes": 64 << 20,
    "skip_mm_profiling": True,
    "enable_prefix_caching": False,
    "max_logprobs": -1,
    "seed": 0,
}

Message = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """A conversation, and how many tokens its greedy answer is to have."""

    messages: list[Message]
    tokens: int = 8


@dataclass(frozen=True)
class Reply:
    """Token ids, and log-probabilities (natural logarithm).

    ``prompt_log_probabilities``: of each token of the prompt but the first, given those before it.
    ``log_probabilities``: of every id of the vocabulary, for each token of the answer.
    """

    prompt: list[int]
    answer: list[int]
    prompt_log_probabilities: list[float]
    log_probabilities: list[list[float]]


def write_questions(path: Path, model: Path, questions: dict[str, Question], options: dict[str, Any]) -> None:
    asked = {name: asdict(question) for name, question in questions.items()}
    path.write_text(json.dumps({"model": str(model), "options": options, "questions": asked}), "utf-8")


def read_replies(answers: Path) -> dict[str, Reply]:
    found = json.loads((answers / "replies.json").read_text("utf-8"))
    return {name: Reply(**reply) for name, reply in found.items()}


def main(arguments: list[str]) -> None:
    asked, answers = (Path(argument) for argument in arguments)
    content = json.loads(asked.read_text("utf-8"))
    answers.mkdir()
    replies = answer_all(content["model"], content["options"], content["questions"], answers)
    (answers / "replies.json").write_text(json.dumps(replies), "utf-8")


def answer_all(model: str, options: dict[str, Any], questions: dict[str, Any], answers: Path) -> Any:
    from vllm import LLM
    from vllm.model_executor.models.step3p7 import Step3p7ForConditionalGeneration
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    watch_loading(Step3p7ForConditionalGeneration, answers / "parameters.safetensors")
    here = {"distributed_executor_backend": UniProcExecutor}
    llm = LLM(model, **here | ENGINE | options)
    return {name: asdict(reply(llm, Question(**question))) for name, question in questions.items()}


def reply(llm: Any, question: Question) -> Reply:
    from vllm import SamplingParams

    greedy = SamplingParams(
        max_tokens=question.tokens, temperature=0, logprobs=-1, prompt_logprobs=0, ignore_eos=True
    )
    [answer] = llm.chat(question.messages, greedy, use_tqdm=False)
    [completion] = answer.outputs
    prompt = list(answer.prompt_token_ids)
    given = zip(prompt[1:], answer.prompt_logprobs[1:], strict=True)
    return Reply(
        prompt=prompt,
        answer=list(completion.token_ids),
        prompt_log_probabilities=[found[token].logprob for token, found in given],
        log_probabilities=[[step[token].logprob for token in sorted(step)] for step in completion.logprobs],
    )


def watch_loading(model: Any, path: Path) -> None:
    """Every parameter is NaN before ``load_weights``; what it holds after it goes to ``path``."""
    from safetensors.torch import save_file

    load_weights = model.load_weights

    def watching(self: Any, weights: Iterable[tuple[str, Any]]) -> Any:
        for parameter in self.parameters():
            parameter.data.fill_(float("nan"))
        names = load_weights(self, weights)
        loaded = {name: value.detach().clone().contiguous() for name, value in self.named_parameters()}
        save_file(loaded, path)
        return names

    model.load_weights = watching


if __name__ == "__main__":
    main(sys.argv[1:])
