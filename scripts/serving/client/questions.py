# SPDX-License-Identifier: Apache-2.0
"""The questions of ``kit smoke``, and what a right answer to each looks like."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from serving import bounded
from serving.capacity import image_tokens
from serving.findings import Finding, note, ok, problem, warning
from serving.model import vocabulary

from . import completion, exchange, picture
from .completion import Completion, Kind
from .exchange import NoReply, Rejected, Server

PARALLEL = 8

QUESTION = (
    "请用三句完整的话介绍北京：第一句讲历史，第二句讲地理位置和气候，第三句讲最有名的小吃。"
    "不要使用列表，不要使用英文，也不要重复题目。"
)
_FOREWORD_TOKENS = 512
"""More than any chat template adds to one question."""

_CHARACTERS_A_TOKEN = 4
"""Chinese text takes about 0.6 tokens a character; a tokenizer that loses it leaves 8 tokens in all."""

_BLUE = (20, 60, 220)
_PICTURES = ((224, 224), (640, 480), (1024, 768))
_CHINESE = ("\u4e00", "\u9fff")
_WINDOW = 24
_MOST_REPEATS = 5

_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "查询一个城市现在的天气",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "城市名"}},
            "required": ["city"],
        },
    },
}

Message = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """``model``: the name to ask for, "" for the first that is served. ``wait``: seconds until healthy."""

    model: str = ""
    key: str = ""
    folder: Path | None = None
    """The model folder; None for the one that the server names, where this machine has it."""
    timeout: float = 120.0
    wait: float = 0.0
    max_tokens: int = 1024
    quality: bool = False


@dataclass(frozen=True)
class Served:
    """What ``/v1/models`` says of the model that is asked."""

    name: str
    root: str


@dataclass(frozen=True)
class Talk:
    """A model to talk to."""

    server: Server
    served: Served
    options: Options

    def request(self, messages: list[Message], **more: Any) -> dict[str, Any]:
        return {
            "model": self.served.name,
            "messages": messages,
            "max_tokens": self.options.max_tokens,
            "temperature": 0,
            "reasoning_effort": "low",
        } | more

    def ask(self, messages: list[Message], **more: Any) -> Completion:
        return completion.parse(self.server.post("/v1/chat/completions", self.request(messages, **more)))


def _user(content: str | list[Message]) -> Message:
    return {"role": "user", "content": content}


def _with_pictures(question: str, sizes: tuple[tuple[int, int], ...]) -> Message:
    urls = [picture.data_url(picture.png(width, height, _BLUE)) for width, height in sizes]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return _user([*parts, {"type": "text", "text": question}])


Question = Callable[[Talk], Iterator[Finding]]


def of(talk: Talk) -> tuple[tuple[str, Question], ...]:
    """The questions to ask, by name and in order."""
    questions: list[tuple[str, Question]] = [
        ("tokenizer", _tokenizer),
        ("chinese", _chinese),
        ("multi-turn", _multi_turn),
        ("streaming", _streaming),
        ("picture", _picture),
        ("pictures", _several_pictures),
        ("tools", _tools),
        ("parallel", _parallel),
    ]
    if talk.options.quality:
        questions.append(("long-answer", _long_answer))
    return tuple(questions)


def _not_run(name: str, why: str, cure: str = "") -> Finding:
    return note(name, name, f"not run: {why}", cure)


# --- what is asked ------------------------------------------------------------------


def _tokenizer(talk: Talk) -> Iterator[Finding]:
    """The server's own tokens of the question, turned back into text, must give the question."""
    name = "tokenizer"
    try:
        asked = {"model": talk.served.name, "prompt": QUESTION, "add_special_tokens": False}
        tokens = _json(talk.server.post("/tokenize", asked)).get("tokens")
        back = _json(talk.server.post("/detokenize", {"model": talk.served.name, "tokens": tokens})).get(
            "prompt"
        )
    except Rejected as error:
        if error.status not in {404, 405}:
            raise
        yield _not_run(name, "the server has no /tokenize")
        return
    count = len(tokens) if isinstance(tokens, list) else 0
    if back == QUESTION:
        yield ok(name, name, f"{count} tokens, and back to the same text")
        return
    what = f"{len(QUESTION)} characters became {count} tokens, and these another text: {_shown(str(back))!r}"
    yield problem(name, name, what, "{kit} verify; the tokenizer of the set is not in use")


def _json(body: bytes) -> dict[str, Any]:
    try:
        return bounded.json_object(body)
    except bounded.Unreadable as error:
        raise NoReply(f"the answer {error}: {exchange.excerpt(body)}") from None


def _chinese(talk: Talk) -> Iterator[Finding]:
    answer = talk.ask([_user(QUESTION)])
    yield from _judged("chinese", answer, talk)
    yield _prompt_tokens(answer, talk)
    if answer.reasoning:
        yield ok("reasoning", "reasoning", f"apart from the answer, {len(answer.reasoning)} characters")
    elif not any(defect.kind is Kind.REASONING_PARSER for defect in completion.defects(answer)):
        yield _not_run("reasoning", "no thinking came back; a server without reasoning parser, maybe")
    if talk.options.quality and answer.content:
        share = sum(_CHINESE[0] <= char <= _CHINESE[1] for char in answer.content) / len(answer.content)
        yield _quality("chinese-answer", share > 0.5, f"{share:.0%} of the answer is Chinese")


def _prompt_tokens(answer: Completion, talk: Talk) -> Finding:
    """``prompt_tokens`` between the fewest tokens that can spell the question, and its bytes."""
    name = "prompt-tokens"
    fewest, source = _fewest_tokens(talk)
    most = len(QUESTION.encode()) + _FOREWORD_TOKENS
    count = answer.prompt_tokens
    if count is None:
        return _not_run(name, "the answer has no prompt_tokens")
    if fewest <= count <= most:
        return ok(name, name, f"{count} for {len(QUESTION)} characters, at least {fewest} by {source}")
    what = f"{count} for {len(QUESTION)} characters, expected {fewest} to {most} by {source}: "
    what += "the tokenizer loses text" if count < fewest else "the tokenizer splits text to pieces"
    return problem(name, name, what, "{kit} verify; the tokenizer of the set is not in use")


def _fewest_tokens(talk: Talk) -> tuple[int, str]:
    folder = talk.options.folder or Path(talk.served.root or "/nonexistent")
    try:
        fewest = vocabulary.fewest_tokens(QUESTION, vocabulary.entries(folder))
    except bounded.Unreadable:
        fewest = None
    if fewest is None:
        return len(QUESTION) // _CHARACTERS_A_TOKEN, "rule of thumb"
    return fewest, f"the vocabulary of {folder}"


def _multi_turn(talk: Talk) -> Iterator[Finding]:
    messages = [
        _user("我叫小明，我最喜欢的颜色是绿色。请记住。"),
        {"role": "assistant", "content": "好的，小明，我记住了。"},
        _user("我叫什么名字？我最喜欢什么颜色？"),
    ]
    answer = talk.ask(messages)
    yield from _judged("multi-turn", answer, talk)
    if talk.options.quality:
        content = answer.content or ""
        is_right = "小明" in content and "绿" in content
        yield _quality("memory", is_right, f"asked for name and colour it says {_shown(content)!r}")


def _streaming(talk: Talk) -> Iterator[Finding]:
    request = talk.request([_user("从一数到二十。")], stream=True, stream_options={"include_usage": True})
    answer, pieces = completion.gather(talk.server.stream("/v1/chat/completions", request))
    yield from _judged("streaming", answer, talk, f"{pieces} pieces, ")


def _picture(talk: Talk) -> Iterator[Finding]:
    question = "这张图片是什么颜色？只回答颜色。"
    yield from _seen("picture", question, _PICTURES[:1], talk)


def _several_pictures(talk: Talk) -> Iterator[Finding]:
    yield from _seen("pictures", "一共有几张图片？它们是什么颜色？", _PICTURES, talk)


def _seen(name: str, question: str, sizes: tuple[tuple[int, int], ...], talk: Talk) -> Iterator[Finding]:
    """Pictures are answered, and take as many tokens of the prompt as the processor gives them."""
    try:
        answer = talk.ask([_with_pictures(question, sizes)])
    except Rejected as error:
        if error.status != 400 or b"image" not in error.body:
            raise
        yield _not_run(name, f"the server takes none: {exchange.excerpt(error.body)}")
        return
    yield from _judged(name, answer, talk)
    yield _picture_tokens(name, answer, sizes)
    if talk.options.quality:
        content = answer.content or ""
        is_right = "蓝" in content or "blue" in content.lower()
        yield _quality(f"{name}-colour", is_right, f"of something blue it says {_shown(content)!r}")


def _picture_tokens(name: str, answer: Completion, sizes: tuple[tuple[int, int], ...]) -> Finding:
    least = sum(image_tokens.tokens(width, height) for width, height in sizes)
    count = answer.prompt_tokens or 0
    if count >= least:
        return ok(f"{name}-tokens", name, f"{count} prompt_tokens, {least} of them the pictures'")
    what = f"{count} prompt_tokens, where the pictures alone take {least}: they did not reach the model"
    return problem(f"{name}-tokens", name, what, "{kit} verify")


def _tools(talk: Talk) -> Iterator[Finding]:
    question = [_user("北京现在的天气怎么样？请调用工具查询。")]
    try:
        answer = talk.ask(question, tools=[_WEATHER], tool_choice="auto")
    except Rejected as error:
        if error.status != 400 or b"tool" not in error.body:
            raise
        yield _not_run("tools", "the server has no tool parser", "PROFILE=agent scripts/serve.sh has one")
        return
    yield from _judged("tools", answer, talk)
    called = ", ".join(f"{call.name}({call.arguments})" for call in answer.tool_calls)
    if called:
        yield ok("tool-call", "tools", f"calls {_shown(called)}")
    elif talk.options.quality:
        yield _quality("tool-call", False, f"no tool was called; it says {_shown(answer.content or '')!r}")
    else:
        yield note("tool-call", "tools", "the request was taken, the model called none")


def _parallel(talk: Talk) -> Iterator[Finding]:
    """So many requests at once; each must be answered, and none waits for all others to end."""
    questions = [f"用一句话说明数字{number}的含义。" for number in range(1, PARALLEL + 1)]
    started = time.monotonic()
    with ThreadPoolExecutor(PARALLEL) as pool:
        outcomes = list(pool.map(partial(_answer_or_failure, talk), questions))
    broken = [outcome for outcome in outcomes if isinstance(outcome, NoReply)]
    if broken:
        what = f"{len(broken)} of {PARALLEL} requests at once failed; the first: {broken[0].what}"
        yield problem("parallel", "parallel", what, broken[0].cure)
        return
    answers = [outcome for outcome in outcomes if isinstance(outcome, Completion)]
    failing = [
        (answer, defect) for answer in answers for defect in completion.defects(answer) if defect.fails
    ]
    if failing:
        defect = failing[0][1]
        yield problem("parallel", "parallel", f"{len(failing)} defects; {defect.what}", defect.cure)
        return
    tokens = sum(answer.completion_tokens or 0 for answer in answers)
    seconds = time.monotonic() - started
    yield ok("parallel", "parallel", f"{PARALLEL} answers, {tokens} tokens in {seconds:.1f} s")


def _answer_or_failure(talk: Talk, question: str) -> Completion | NoReply:
    try:
        return talk.ask([_user(question)], max_tokens=min(talk.options.max_tokens, 64))
    except NoReply as error:
        return error


def _long_answer(talk: Talk) -> Iterator[Finding]:
    """A long greedy answer without a loop and without broken characters."""
    question = "请写一篇约八百字的短文，介绍长江从源头到入海口的风景和城市。"
    answer = talk.ask([_user(question)], max_tokens=max(talk.options.max_tokens, 2048))
    yield from _judged("long-answer", answer, talk)
    content = answer.content or ""
    yield _quality("length", len(content) >= 300, f"{len(content)} characters of about 800")
    yield _quality("characters", "\ufffd" not in content, f"{content.count(chr(0xFFFD))} broken characters")
    repeats = _most_repeats(content)
    yield _quality("repetition", repeats <= _MOST_REPEATS, f"the same passage {repeats} times at the most")


def _most_repeats(text: str) -> int:
    """How often the most frequent passage of some length occurs."""
    passages = [text[start : start + _WINDOW] for start in range(len(text) - _WINDOW + 1)]
    counts: dict[str, int] = {}
    for passage in passages:
        counts[passage] = counts.get(passage, 0) + 1
    return max(counts.values(), default=0)


# --- how it is judged ---------------------------------------------------------------


def _judged(name: str, answer: Completion, talk: Talk, how: str = "") -> Iterator[Finding]:
    found = completion.defects(answer)
    for defect in found:
        fails = defect.fails or talk.options.quality
        finding = (problem if fails else warning)(
            f"{name}-{defect.kind.value}", name, defect.what, defect.cure
        )
        yield finding
    if not found:
        said = _shown(answer.content or "tool_calls")
        usage = f"{answer.prompt_tokens} + {answer.completion_tokens} tokens, {answer.finish_reason}"
        yield ok(name, name, f"{how}{usage}: {said}")


def _quality(name: str, is_right: bool, what: str) -> Finding:
    if is_right:
        return ok(name, "quality", what)
    return problem(name, "quality", what, "see the other findings first; then --dtype bfloat16, {kit} verify")


def _shown(text: str) -> str:
    return exchange.excerpt(text.encode("utf-8", "replace"))[:60]
