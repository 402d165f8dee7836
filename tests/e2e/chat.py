# SPDX-License-Identifier: Apache-2.0
"""Talks to a server as its users do: the ``openai`` package, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import openai

from e2e.server import Server
from tiny.engine import Message, Reply
from tiny.launch import SERVED_NAME

ANSWER_S = 120
EVERYTHING = 1024
"""The size of the vocabulary. The server must allow it: ``--max-logprobs=-1``."""


def client(server: Server) -> openai.OpenAI:
    """Past any proxy of the environment, and nothing is asked twice."""
    return openai.OpenAI(
        base_url=f"{server.url}/v1",
        api_key="none is asked for",
        max_retries=0,
        timeout=ANSWER_S,
        http_client=openai.DefaultHttpxClient(trust_env=False),
    )


def say(server: Server, messages: Sequence[Message], tokens: int = 8, **more: Any) -> Any:
    """A greedy answer, whole; raises `openai.APIStatusError`. ``extra`` are fields of vLLM's own.

    A connection of its own each time: vLLM 0.20.2 closes one on which it refused a picture.
    """
    with client(server) as asked:
        return asked.chat.completions.create(**request(messages, tokens, **more))


def say_in_pieces(server: Server, messages: Sequence[Message], tokens: int = 8, **more: Any) -> Iterator[Any]:
    """The same as a stream."""
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    with client(server) as asked:
        yield from asked.chat.completions.create(**request(messages, tokens, **more), **streamed)


def request(
    messages: Sequence[Message], tokens: int, extra: Mapping[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    greedy = {"model": SERVED_NAME, "messages": list(messages), "max_tokens": tokens, "temperature": 0}
    return greedy | {"extra_body": dict(extra or {})} | more


def refusal(server: Server, messages: Sequence[Message], **more: Any) -> openai.APIStatusError:
    """The HTTP error with which a request is refused."""
    try:
        answer = say(server, messages, **more)
    except openai.APIStatusError as error:
        return error
    raise AssertionError(f"it was answered: {answer}")


def say_with_figures(server: Server, messages: Sequence[Message], tokens: int = 8) -> Reply:
    """What a server thought of each token: of the prompt's, and of all ids for those of its answer."""
    asked = {
        "ignore_eos": True,
        "prompt_logprobs": 0,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    answer = say(server, messages, tokens, extra=asked, logprobs=True, top_logprobs=EVERYTHING)
    [choice] = answer.choices
    prompt = answer.prompt_token_ids
    given = zip(prompt[1:], answer.prompt_logprobs[1:], strict=True)
    return Reply(
        prompt=prompt,
        answer=choice.token_ids,
        prompt_log_probabilities=[found[str(token)]["logprob"] for token, found in given],
        log_probabilities=[by_id(step.top_logprobs) for step in choice.logprobs.content],
    )


def by_id(found: Sequence[Any]) -> list[float]:
    """Tokens come as ``token_id:N``, the likeliest first."""
    ordered = {int(entry.token.removeprefix("token_id:")): entry.logprob for entry in found}
    assert sorted(ordered) == list(range(EVERYTHING))
    return [ordered[token] for token in range(EVERYTHING)]
