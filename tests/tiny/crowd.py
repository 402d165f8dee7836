# SPDX-License-Identifier: Apache-2.0
"""Requests one after the other, and the same all at once, in KV caches of several sizes.

    python -m tiny.crowd MODEL ROOT ANSWERS.json BLOCKS...

``ROOT`` holds the ``vllm_ascend/`` whose attention class computes, over the stand-in of its
kernel. ``ANSWERS.json`` becomes a list: the answers of each request alone, in the first of the
pools, then of all together in each. A window is as long as a block, so that a block is given back
every few steps; when it goes to whom depends on lengths alone, not on what is answered.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tiny.engine import ENGINE

BLOCK = 16
REQUESTS = 12
TOKENS = 100
LONGEST = 320
IDS = 256


@dataclass(frozen=True)
class Answer:
    """Greedy tokens, and the log-probability of each."""

    tokens: list[int]
    log_probabilities: list[float]


def prompts() -> list[list[int]]:
    """Of 40 to 200 tokens. A request is as long as its prompt and `TOKENS`, whatever is answered."""
    drawn = random.Random(37)
    return [[drawn.randrange(IDS) for _ in range(drawn.randint(40, 200))] for _ in range(REQUESTS)]


def main(arguments: list[str]) -> None:
    from tiny import ascend_attention

    model, root, answers, *pools = arguments
    ascend_attention.install(root)
    asked = prompts()
    found: list[list[Answer]] = []
    for blocks in map(int, pools):
        llm = engine(model, blocks)
        if not found:
            found.append([answer for prompt in asked for answer in ask(llm, [prompt])])
        found.append(ask(llm, asked))
    Path(answers).write_text(json.dumps([list(map(asdict, row)) for row in found]), "utf-8")


def read(answers: Path) -> list[list[Answer]]:
    return [[Answer(**answer) for answer in row] for row in json.loads(answers.read_text("utf-8"))]


def engine(model: str, blocks: int) -> Any:
    from vllm import LLM
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    options = ENGINE | {
        "distributed_executor_backend": UniProcExecutor,
        "block_size": BLOCK,
        "num_gpu_blocks_override": blocks,
        "max_num_seqs": REQUESTS,
        "max_model_len": LONGEST,
        "disable_hybrid_kv_cache_manager": False,
        "limit_mm_per_prompt": {"image": 0},
    }
    return LLM(model, **options)


def ask(llm: Any, asked: list[list[int]]) -> list[Answer]:
    from vllm import SamplingParams

    greedy = SamplingParams(max_tokens=TOKENS, temperature=0, logprobs=0, ignore_eos=True)
    results = llm.generate([{"prompt_token_ids": prompt} for prompt in asked], greedy, use_tqdm=False)
    answers = []
    for [completion] in (result.outputs for result in results):
        steps = zip(completion.token_ids, completion.logprobs, strict=True)
        answers.append(Answer(list(completion.token_ids), [step[token].logprob for token, step in steps]))
    return answers


if __name__ == "__main__":
    main(sys.argv[1:])
