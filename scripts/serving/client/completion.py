# SPDX-License-Identifier: Apache-2.0
"""A chat completion as it came back, and what is wrong with it. Pure: bytes in, values out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from serving import bounded

from .exchange import NoReply, excerpt

_FINISHES = frozenset({"stop", "length", "tool_calls", "function_call", "content_filter"})
_BYTE_LEVEL_MARKS = ("Ġ", "Ċ", "ĉ")
"""How a byte-level BPE vocabulary writes a space, a line end and a tab; never in a decoded text."""

_THINKING_MARKS = ("<think>", "</think>")
_TOOL_MARKS = ("<tool_call>", "</tool_call>")


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: str


@dataclass(frozen=True)
class Completion:
    """The first choice of an answer. Texts are None where the field is absent or null."""

    content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None

    @property
    def empty(self) -> bool:
        return not (self.content or self.reasoning or self.tool_calls)


class Kind(Enum):
    """What is wrong with an answer; the values are stable, for programs."""

    MORE_TOKENS = "raise-max-tokens"
    NO_ANSWER = "no-answer"
    OVERFLOW = "overflow"
    TOKENIZER = "tokenizer"
    REASONING_PARSER = "reasoning-parser"
    TOOL_PARSER = "tool-parser"
    MALFORMED = "malformed"


@dataclass(frozen=True)
class Defect:
    """One thing wrong with an answer. ``fails`` is False where the server is well all the same."""

    kind: Kind
    what: str
    cure: str
    fails: bool = True


def parse(body: bytes) -> Completion:
    """Read the body of a chat completion.

    Raises:
        NoReply: it is no JSON object with a choice in it.
    """
    values = _object(body)
    message = _first_choice(values, body).get("message")
    found = _of_message(message if isinstance(message, dict) else {})
    return replace(
        _with_usage(found, values), finish_reason=_text(_first_choice(values, body), "finish_reason")
    )


def gather(lines: Iterable[bytes]) -> tuple[Completion, int]:
    """Put a stream of server-sent events together: the completion, and how many pieces it came in.

    Raises:
        NoReply: it ends before ``[DONE]``, an event is no JSON, or one reports an error.
    """
    whole, pieces = Completion(), 0
    for data in _events(lines):
        if data == b"[DONE]":
            return whole, pieces
        values = _object(data)
        if "error" in values:
            raise NoReply(f"the stream reports an error: {excerpt(data)}")
        whole = _joined(_with_usage(whole, values), values)
        pieces += bool(values.get("choices"))
    raise NoReply(f"the stream breaks off after {pieces} pieces, before [DONE]")


def _events(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The data of each event; comments, blank lines and other fields are passed over."""
    return (line.removeprefix(b"data:").strip() for line in lines if line.startswith(b"data:"))


def _joined(whole: Completion, values: dict[str, Any]) -> Completion:
    choices = values.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return whole
    delta = choices[0].get("delta")
    piece = _of_message(delta if isinstance(delta, dict) else {})
    return replace(
        whole,
        content=_sum(whole.content, piece.content),
        reasoning=_sum(whole.reasoning, piece.reasoning),
        finish_reason=_text(choices[0], "finish_reason") or whole.finish_reason,
    )


def _sum(first: str | None, second: str | None) -> str | None:
    return first if second is None else (first or "") + second


def _object(body: bytes) -> dict[str, Any]:
    try:
        return bounded.json_object(body)
    except bounded.Unreadable as error:
        raise NoReply(f"the answer {error}: {excerpt(body) or 'it is empty'}") from None


def _first_choice(values: dict[str, Any], body: bytes) -> dict[str, Any]:
    choices = values.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0]
    raise NoReply(f"the answer is no chat completion, for it has no choices: {excerpt(body)}")


def _of_message(message: dict[str, Any]) -> Completion:
    calls = message.get("tool_calls")
    return Completion(
        content=_text(message, "content"),
        # vLLM 0.20.2 says "reasoning", earlier ones "reasoning_content".
        reasoning=_text(message, "reasoning") or _text(message, "reasoning_content"),
        tool_calls=tuple(_call(call) for call in calls if isinstance(call, dict))
        if isinstance(calls, list)
        else (),
    )


def _call(call: dict[str, Any]) -> ToolCall:
    function = call.get("function")
    values = function if isinstance(function, dict) else {}
    return ToolCall(_text(values, "name") or "", _text(values, "arguments") or "")


def _with_usage(found: Completion, values: dict[str, Any]) -> Completion:
    usage = values.get("usage")
    if not isinstance(usage, dict):
        return found
    return replace(
        found,
        prompt_tokens=_count(usage, "prompt_tokens"),
        completion_tokens=_count(usage, "completion_tokens"),
    )


def _text(values: dict[str, Any], key: str) -> str | None:
    found = values.get(key)
    return found if isinstance(found, str) else None


def _count(values: dict[str, Any], key: str) -> int | None:
    found = values.get(key)
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else None


def defects(found: Completion) -> tuple[Defect, ...]:
    """What is wrong with an answer, whatever was asked; the cause that explains most first."""
    return (*_of_texts(found), *_of_accounts(found))


def _of_texts(found: Completion) -> Iterator[Defect]:
    texts = (found.content or "") + (found.reasoning or "")
    if found.empty or (len(texts) > 1 and set(texts.strip()) == {"!"}):
        what = "an answer without any text" if found.empty else "an answer of exclamation marks alone"
        yield Defect(
            Kind.OVERFLOW,
            f"{what}: activations overflow, it seems, as they can in float16",
            "try bfloat16: PROFILE=bf16-tp8, or --dtype bfloat16",
        )
    elif not found.content and not found.tool_calls:
        yield _thinking_alone(found)
    if mark := _first_in(texts, _BYTE_LEVEL_MARKS):
        yield Defect(
            Kind.TOKENIZER,
            f"the answer holds {mark}, a mark of the vocabulary: the tokenizer decodes wrongly",
            "{kit} verify",
        )
    if mark := _first_in(found.content or "", _THINKING_MARKS):
        yield Defect(
            Kind.REASONING_PARSER,
            f"the answer holds a raw {mark}: the server has no reasoning parser",
            "--reasoning-parser step3p5",
        )
    if mark := _first_in(found.content or "", _TOOL_MARKS):
        yield Defect(
            Kind.TOOL_PARSER,
            f"the answer holds a raw {mark}: the server has no tool parser, or the call was malformed",
            "PROFILE=agent, or --enable-auto-tool-choice --tool-call-parser step3p5",
        )


def _thinking_alone(found: Completion) -> Defect:
    if found.finish_reason == "length":
        what = "the thinking took all the tokens that were allowed, and no answer was left"
        return Defect(Kind.MORE_TOKENS, what, "raise max_tokens: --max-tokens 4096", fails=False)
    what = f"the model stopped ({found.finish_reason}) inside its thinking, and gave no answer"
    cure = "ask again; where it happens often: {kit} verify, and --dtype bfloat16"
    return Defect(Kind.NO_ANSWER, what, cure, fails=False)


def _first_in(text: str, marks: Iterable[str]) -> str:
    return next((mark for mark in marks if mark in text), "")


def _of_accounts(found: Completion) -> Iterator[Defect]:
    if found.finish_reason not in _FINISHES:
        what = f"finish_reason is {found.finish_reason!r}, expected one of {', '.join(sorted(_FINISHES))}"
        yield Defect(Kind.MALFORMED, what[:200], "is it vLLM that answers?")
    for name, count in (("prompt", found.prompt_tokens), ("completion", found.completion_tokens)):
        if not count:
            what = f"usage has {'no' if count is None else '0'} {name}_tokens"
            yield Defect(Kind.MALFORMED, what, "is it vLLM that answers?")
    for call in found.tool_calls:
        if not call.name or not _is_json(call.arguments):
            what = f"a tool call of {call.name[:40]!r} has arguments that are no JSON"
            yield Defect(Kind.TOOL_PARSER, what, "ask again; models write a malformed call now and then")


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
