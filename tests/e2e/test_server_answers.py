# SPDX-License-Identifier: Apache-2.0
"""The patched vLLM as its users meet it: one server, a folder with remote code, everything over HTTP."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from e2e.cases import PICTURES, QUESTIONS, TEXTS, Serve
from e2e.chat import refusal, say, say_in_pieces, say_with_figures
from e2e.server import Server, Way
from tiny.comparison import TOLERANCE, compare
from tiny.conversations import CHINESE, LONG_CHINESE, ask, data_url, picture, prompt_ids
from tiny.engine import Message
from tiny.pictures import Views, look_at
from tiny.reference import Reference
from tiny.tokenizer import IDS, SEEN

pytest_plugins = ["e2e.server_fixtures"]

WAY = Way(
    options=(
        "--max-logprobs=-1",
        # A grammar then binds the reasoning, too: so a model of random words says what a parser is to read.
        '--structured-outputs-config={"enable_in_reasoning": true}',
    )
)
SIZES = {
    (1, 1): 171,
    (224, 224): 171,
    (1024, 768): 504,
    (1920, 1080): 836,
    (2000, 100): 1831,
    (3024, 3024): 3164,
}
"""The tokens of a picture: 171 for the whole, 83 for each crop, and one for each row of them but the last."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        },
    },
}
THOUGHT = "先查一下天气。"
ANSWER = "北京今天晴，二十度。"
CALL = (
    "<tool_call>\n<function=weather>\n<parameter=city>\n北京\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
)


@pytest.fixture(scope="module")
def server(serve: Serve, patched_root: Path, published_form: Path) -> Iterator[Server]:
    with serve(patched_root, published_form, WAY) as running:
        yield running


# --- the numbers ---


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_server_says_what_the_reference_says(
    server: Server, views: dict[str, list[Views]], flat_model: Path, name: str, note: Callable[[str], None]
) -> None:
    reply = say_with_figures(server, QUESTIONS[name].messages)

    found = compare(reply, Reference(flat_model), views[name])

    note(f"server and reference, {name}: {found}")
    assert reply.prompt == prompt_ids(flat_model, TEXTS[name], views[name])
    assert found.worst < TOLERANCE
    assert found.same_tokens


# --- the tokenizer ---


@pytest.mark.parametrize(
    "text", [CHINESE, LONG_CHINESE, "龘 😀\t\r\n  x", "def f(x):\n    return x + 12345\n"]
)
def test_text_arrives_whole_and_is_counted_as_the_tokenizers_file_counts_it(
    server: Server, flat_model: Path, text: str
) -> None:
    answer = say(server, ask(text), extra={"return_token_ids": True})

    arrived = Tokenizer.from_file(str(flat_model / "tokenizer.json")).decode(answer.prompt_token_ids)

    assert f"user\n{text}\n" in arrived
    assert answer.usage.prompt_tokens == len(prompt_ids(flat_model, text))


@pytest.mark.parametrize(("size", "tokens"), SIZES.items(), ids=str)
def test_a_picture_costs_what_it_costs_the_published_model(
    server: Server, flat_model: Path, size: tuple[int, int], tokens: int
) -> None:
    drawn = picture(*size)
    text = "这是什么？"

    answer = say(server, ask(text, drawn), extra={"return_token_ids": True})

    assert answer.usage.prompt_tokens == len(prompt_ids(flat_model, text)) + tokens
    assert answer.prompt_token_ids == prompt_ids(flat_model, text, [look_at(drawn)])


def test_a_second_turn_holds_the_first_with_its_picture(server: Server, flat_model: Path) -> None:
    drawn = picture(224, 224)
    second = [
        *ask("这是什么？", drawn),
        {"role": "assistant", "content": "一张图片。"},
        *ask("什么颜色？"),
    ]

    answer = say(server, second, extra={"return_token_ids": True})

    arrived = Tokenizer.from_file(str(flat_model / "tokenizer.json")).decode(answer.prompt_token_ids)
    assert "这是什么？\nassistant\n一张图片。\nuser\n什么颜色？\nassistant\n<think>" in arrived
    assert answer.prompt_token_ids.count(placeholder(flat_model)) == 169


def placeholder(model: Path) -> int:
    return int(json.loads((model / "config.json").read_text("utf-8"))["image_token_id"])


# --- streams and parsers ---


def say_exactly(text: str) -> dict[str, Any]:
    """Request fields that make a model of random words say this, each mark as the one token that it is."""
    for character in "()[]{}.*+?|^$\\":
        text = text.replace(character, f"\\{character}")
    marks = {str(IDS[mark]): 100 for mark in SEEN}
    return {"extra": {"structured_outputs": {"regex": text}}, "logit_bias": marks}


def streamed(server: Server, messages: list[Message], **more: Any) -> dict[str, Any]:
    """What the pieces add up to."""
    whole: dict[str, Any] = {"reasoning": "", "content": "", "name": "", "arguments": "", "usage": None}
    pieces = 0
    for piece in say_in_pieces(server, messages, **more):
        whole["usage"] = piece.usage or whole["usage"]
        for choice in piece.choices:
            pieces += 1
            whole["reasoning"] += getattr(choice.delta, "reasoning", None) or ""
            whole["content"] += choice.delta.content or ""
            for call in choice.delta.tool_calls or []:
                whole["name"] += call.function.name or ""
                whole["arguments"] += call.function.arguments or ""
    return whole | {"pieces": pieces}


def test_a_stream_adds_up_to_the_whole_answer(server: Server) -> None:
    whole = say(server, ask(LONG_CHINESE), tokens=32)

    stream = streamed(server, ask(LONG_CHINESE), tokens=32)

    assert stream["reasoning"] == whole.choices[0].message.reasoning
    assert stream["usage"] == whole.usage
    assert stream["pieces"] > 10


def test_the_reasoning_parser_parts_thought_from_answer(server: Server) -> None:
    said = say_exactly(f"{THOUGHT}\n</think>\n{ANSWER}")

    message = say(server, ask("北京天气？"), 100, **said).choices[0].message
    stream = streamed(server, ask("北京天气？"), tokens=100, **said)

    assert (message.reasoning.strip(), message.content.strip()) == (THOUGHT, ANSWER)
    assert (stream["reasoning"].strip(), stream["content"].strip()) == (THOUGHT, ANSWER)


def test_the_tool_parser_reads_a_call(server: Server) -> None:
    said = say_exactly(f"{THOUGHT}\n</think>\n{CALL}")

    answer = say(server, ask("北京天气？"), 200, **said, tools=[WEATHER])

    [call] = answer.choices[0].message.tool_calls
    assert answer.choices[0].finish_reason == "tool_calls"
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments) == {"city": "北京", "days": 3}


def test_the_tool_parser_reads_a_call_in_a_stream(server: Server) -> None:
    said = say_exactly(f"{THOUGHT}\n</think>\n{CALL}")

    stream = streamed(server, ask("北京天气？"), tokens=200, **said, tools=[WEATHER])

    assert stream["name"] == "weather"
    assert json.loads(stream["arguments"]) == {"city": "北京", "days": 3}
    assert stream["reasoning"].strip() == THOUGHT


# --- many at once ---


def test_sixteen_requests_at_once_get_the_answers_that_each_gets_alone(server: Server) -> None:
    questions = [
        ask(f"第{number}个问题：{LONG_CHINESE}"[: 20 + 5 * number], *PICTURES["picture"][: number % 2])
        for number in range(16)
    ]
    alone = [words(say(server, question, 16)) for question in questions]

    with ThreadPoolExecutor(len(questions)) as pool:
        together = list(pool.map(lambda question: words(say(server, question, 16)), questions))

    assert together == alone
    assert len(set(alone)) == len(questions)


def words(answer: Any) -> str:
    message = answer.choices[0].message
    return f"{message.reasoning}{message.content}"


# --- what is refused ---

PNG = data_url(picture(224, 224))
HEAD, _, CONTENT = PNG.partition(",")
BROKEN = {
    "not base64": f"{HEAD},!!!",
    "not a picture": f"{HEAD},{base64.b64encode(b'hello').decode()}",
    "half a picture": f"{HEAD},{CONTENT[: len(CONTENT) // 8 * 4]}",
    "nothing": f"{HEAD},",
}


def about(url: str) -> list[Message]:
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "这是什么？"}]
    return [{"role": "user", "content": parts}]


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_picture_is_a_clean_http_400_and_the_server_goes_on(server: Server, name: str) -> None:
    error = refusal(server, about(BROKEN[name]))

    assert error.status_code == HTTPStatus.BAD_REQUEST
    assert "Traceback" not in str(error)
    assert say(server, about(PNG)).usage.completion_tokens > 0


def test_a_prompt_that_is_too_long_is_a_clean_http_400_and_the_server_goes_on(server: Server) -> None:
    error = refusal(server, ask(LONG_CHINESE * 50))

    assert error.status_code == HTTPStatus.BAD_REQUEST
    assert "maximum context length is 4096 tokens" in str(error)
    assert say(server, ask("你好")).usage.completion_tokens > 0


def test_after_all_of_this_the_server_is_healthy(server: Server, note: Callable[[str], None]) -> None:
    note(f"server, {WAY}: {server.figures()}")
    assert server.is_healthy()
