# SPDX-License-Identifier: Apache-2.0
"""``kit smoke`` against a server that answers well, or wrongly in exactly one way."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import threading
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchkit.errors import Refused
from serving.client import completion, exchange, picture, questions, smoke
from serving.client.completion import Kind
from serving.client.exchange import NoReply
from serving.client.questions import Options
from serving.client.smoke import Report
from serving.findings import Severity
from serving.model import vocabulary
from unit import identifiers
from unit.serving import fake_chat
from unit.serving.fake_chat import Fake, good_chat, reply, serving, stream

QUICK = Options(timeout=5, max_tokens=64)


def smoke_of(fake: Fake, options: Options = QUICK) -> Report:
    """The report; the list of all names has each of its names."""
    with serving(fake) as running:
        report = smoke.run(running.url, options)
    assert {finding.name for finding in report.findings} <= identifiers.findings()["smoke"]
    return report


def says(message: dict[str, Any], finish: str = "stop", **usage: int) -> Fake:
    """A server that gives this message to every question that is neither streamed nor about tools."""

    def chat(request: dict[str, Any]) -> tuple[int, bytes]:
        if request.get("stream") or request.get("tools"):
            return good_chat(request)
        tokens = {"prompt": 60 + 600 * fake_chat.pictures_in(request)} | usage
        return 200, reply({"role": "assistant"} | message, finish, **tokens)

    return Fake(chat)


def test_a_healthy_server_passes() -> None:
    report = smoke_of(Fake())
    assert not report.failed, smoke.text(report)
    assert {finding.severity for finding in report.findings} == {Severity.OK}
    assert {"health", "model", "tokenizer", "chinese", "prompt-tokens", "reasoning", "multi-turn"} <= {
        finding.name for finding in report.findings
    }
    assert {"streaming", "picture", "pictures", "tools", "tool-call", "parallel"} <= {
        finding.name for finding in report.findings
    }
    assert smoke.text(report).splitlines()[-1].startswith("passed: no problem")


@pytest.mark.parametrize(
    ("fake", "fails", "expected"),
    [
        (says({"content": None, "reasoning": "想"}, "length"), False, "raise max_tokens"),
        (says({"content": None, "reasoning": "想"}), False, "inside its thinking, and gave no answer"),
        (says({"content": None, "reasoning": None}), True, "try bfloat16"),
        (says({"content": "", "reasoning": ""}), True, "try bfloat16"),
        (says({"content": "!!!!!!!!"}), True, "try bfloat16"),
        (says({"content": "Ġ北京ĠĠ历史"}), True, "the tokenizer decodes wrongly"),
        (says({"content": "好"}, prompt=7), True, "the tokenizer loses text"),
        (says({"content": "<think>\n想\n</think>好"}), True, "--reasoning-parser step3p5"),
        (says({"content": "想\n</think>\n好"}), True, "--reasoning-parser step3p5"),
        (says({"content": "<tool_call>\n<function=f>"}), True, "--tool-call-parser step3p5"),
        (says({"content": "好"}, finish="unheard"), True, "finish_reason is 'unheard'"),
        (Fake(detokenized="\n\n"), True, "and these another text"),
    ],
)
def test_each_faulty_reply_has_its_own_sentence(fake: Fake, fails: bool, expected: str) -> None:
    report = smoke_of(fake)
    assert report.failed is fails
    assert expected in smoke.text(report)


def test_faults_do_not_stand_for_one_another() -> None:
    texts = {
        kind: [defect.kind for defect in completion.defects(completion.parse(body))]
        for kind, body in {
            Kind.MORE_TOKENS: reply({"content": None, "reasoning": "想"}, "length"),
            Kind.NO_ANSWER: reply({"content": None, "reasoning": "想"}),
            Kind.OVERFLOW: reply({"content": None}),
            Kind.TOKENIZER: reply({"content": "aĠb"}),
            Kind.REASONING_PARSER: reply({"content": "<think>"}),
            Kind.TOOL_PARSER: reply({"content": "<tool_call>"}),
            Kind.MALFORMED: reply({"content": "好"}, answer=0),
        }.items()
    }
    assert texts == {kind: [kind] for kind in Kind}


def test_what_only_a_real_checkpoint_can_do_is_asked_of_it_alone() -> None:
    careless = smoke_of(Fake())
    strict = smoke_of(Fake(), Options(timeout=5, quality=True))
    assert not careless.failed
    wrong = {finding.name for finding in strict.findings if finding.severity is Severity.PROBLEM}
    assert wrong == {"memory", "picture-colour", "pictures-colour", "length"}


def test_a_name_that_is_not_served_lists_those_that_are() -> None:
    report = smoke_of(Fake(names=("one", "two")), Options(model="step3p7"))
    assert report.failed
    assert "'step3p7' is not served; the server has: one, two" in smoke.text(report)
    assert "--model one" in smoke.text(report)


def test_a_closed_port_is_named() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    report = smoke.run(f"http://127.0.0.1:{port}", QUICK)
    assert report.failed
    assert f"nothing listens at http://127.0.0.1:{port}" in smoke.text(report)


def test_pictures_that_do_not_reach_the_model() -> None:
    report = smoke_of(says({"content": "蓝色"}, prompt=60))
    assert "60 prompt_tokens, where the pictures alone take 171" in smoke.text(report)


def test_a_server_without_tool_parser_is_not_failed() -> None:
    def chat(request: dict[str, Any]) -> tuple[int, bytes]:
        if request.get("tools"):
            return 400, b'{"message": "\\"auto\\" tool choice requires --enable-auto-tool-choice"}'
        return good_chat(request)

    report = smoke_of(Fake(chat, tokenizes=False))
    assert not report.failed
    assert "tools: not run: the server has no tool parser" in smoke.text(report)
    assert "tokenizer: not run: the server has no /tokenize" in smoke.text(report)


def test_a_malformed_tool_call() -> None:
    call = {"function": {"name": "get_weather", "arguments": '{"city": '}}

    def chat(request: dict[str, Any]) -> tuple[int, bytes]:
        answer = reply({"content": None, "tool_calls": [call]}, "tool_calls")
        return (200, answer) if request.get("tools") else good_chat(request)

    assert "has arguments that are no JSON" in smoke.text(smoke_of(Fake(chat)))


def test_eight_requests_are_in_flight_at_once() -> None:
    gate = threading.Barrier(8)  # none is answered before the eighth has come

    def chat(request: dict[str, Any]) -> tuple[int, bytes]:
        if "数字" in str(request["messages"][0]["content"]):
            gate.wait(5)
        return good_chat(request)

    report = smoke_of(Fake(chat))
    assert not report.failed, smoke.text(report)
    assert "parallel: 8 answers, 96 tokens in" in smoke.text(report)


def test_the_key_is_sent_and_its_absence_is_told() -> None:
    assert not smoke_of(Fake(key="secret"), Options(key="secret", timeout=5)).failed
    without = smoke_of(Fake(key="secret"))
    assert "wants an API key" in smoke.text(without)


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert not smoke_of(Fake()).failed


def test_waiting_for_a_server_that_is_still_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoke, "_POLL_S", 0.05)
    fake = Fake(health=503)
    timer = threading.Timer(0.2, lambda: setattr(fake, "health", 200))
    timer.start()
    assert not smoke_of(fake, Options(timeout=5, wait=5)).failed
    assert "HTTP 503" in smoke.text(smoke_of(Fake(health=503)))


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", "closed the connection without an answer"),
        (b"220 mail.example ESMTP\r\n", "does not answer in HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{", "breaks off before its end"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nnot json", "is not JSON"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "holds a JSON list"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "it has no choices"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "it is empty"),
        (b"HTTP/1.1 500 No\r\nContent-Length: 4\r\n\r\nboom", "answered HTTP 500: boom"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "breaks off before its end"),
    ],
)
def test_each_broken_exchange_has_a_sentence(raw: bytes, expected: str) -> None:
    report = smoke_of(Fake(raw=raw))
    assert report.failed
    assert expected in smoke.text(report)


def test_a_server_that_does_not_answer_in_time() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        report = smoke.run(f"http://127.0.0.1:{silent.getsockname()[1]}", Options(timeout=0.2))
    assert "took longer than 0.2 s" in smoke.text(report)


def test_an_answer_that_drips_is_given_up_at_the_deadline() -> None:
    def drip(listener: socket.socket, enough: threading.Event) -> None:
        peer, _ = listener.accept()
        with peer:
            peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while not enough.wait(0.05):
                try:
                    peer.sendall(b" ")
                except OSError:
                    return

    enough = threading.Event()
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        threading.Thread(target=drip, args=(listener, enough), daemon=True).start()
        report = smoke.run(f"http://127.0.0.1:{listener.getsockname()[1]}", Options(timeout=0.5))
        enough.set()
    assert "took longer than 0.5 s" in smoke.text(report)
    assert report.seconds < 3


def test_plain_http_where_https_was_asked_for() -> None:
    with serving(Fake()) as fake:
        report = smoke.run(fake.url.replace("http:", "https:"), QUICK)
    assert "does not speak TLS" in smoke.text(report)


def test_a_stream_that_breaks_off() -> None:
    def chat(request: dict[str, Any]) -> tuple[int, bytes]:
        return (200, stream("一", "二", ends=False)) if request.get("stream") else good_chat(request)

    assert "breaks off after 2 pieces, before [DONE]" in smoke.text(smoke_of(Fake(chat)))


def test_a_stream_that_reports_an_error() -> None:
    def chat(request: dict[str, Any]) -> tuple[int, bytes]:
        body = b'data: {"error": {"message": "engine died"}}\n\n'
        return (200, body) if request.get("stream") else good_chat(request)

    assert "the stream reports an error" in smoke.text(smoke_of(Fake(chat)))


def test_an_endless_answer_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_LIMIT", 1 << 20)
    body = b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (3 << 20)
    assert "sent more than 1 MiB" in smoke.text(smoke_of(Fake(raw=body)))


@pytest.mark.parametrize(
    "url",
    ["ftp://127.0.0.1", "http://", "http://127.0.0.1:port", "http://a b/", "http://u:p@h/", "http://[::1"],
)
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(Refused):
        smoke.run(url, QUICK)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://[::1]:8000/v1/", "http://[::1]:8000"),
        ("https://host.example/model/v1", "https://host.example:443/model"),
    ],
)
def test_a_url_in_any_usual_form(url: str, shown: str) -> None:
    assert str(exchange.server(url)) == shown


def test_a_key_that_would_break_the_header() -> None:
    with pytest.raises(Refused):
        exchange.server("http://h", "a\r\nX: y")


def test_the_report_for_a_program() -> None:
    answer = json.loads(json.dumps(smoke.as_json(smoke_of(says({"content": None})))))
    assert answer["failed"] is True
    assert "chinese-overflow" in {finding["name"] for finding in answer["findings"]}


def test_the_picture_is_a_png_of_its_colour() -> None:
    image = picture.png(5, 3, (20, 60, 220))
    assert image[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", image[16:24]) == (5, 3)
    start = image.index(b"IDAT")
    (length,) = struct.unpack(">I", image[start - 4 : start])
    assert zlib.decompress(image[start + 4 : start + 4 + length]) == (b"\0" + bytes((20, 60, 220)) * 5) * 3
    (check,) = struct.unpack(">I", image[start + 4 + length : start + 8 + length])
    assert check == zlib.crc32(image[start : start + 4 + length])


def test_the_fewest_tokens_that_spell_a_text() -> None:
    # 中 is E4 B8 AD, which a byte-level vocabulary writes as ä ¸ Ń; a space is Ġ.
    assert vocabulary.fewest_tokens("中", {"ä", "¸", "Ń"}) == 3
    assert vocabulary.fewest_tokens("中 a", {"ä¸Ń", "ä", "¸", "Ń", "Ġa", "Ġ", "a"}) == 2
    assert vocabulary.fewest_tokens("中", {"ä"}) is None


def test_prompt_tokens_are_held_against_the_model_folder(tmp_path: Path) -> None:
    letters = "".join(vocabulary._LETTERS[byte] for byte in questions.QUESTION.encode())
    vocab = {letter: number for number, letter in enumerate(sorted(set(letters)))}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}}))
    report = smoke_of(Fake(), Options(timeout=5, folder=tmp_path))
    assert f"60 for {len(questions.QUESTION)} characters, expected {len(letters)} to" in smoke.text(report)


def sentence_of(function: Callable[[bytes], object], body: bytes) -> str:
    """What is said of a body, "" where it is a completion; any other exception fails the test."""
    try:
        function(body)
    except NoReply as error:
        return error.what
    return ""


def assert_is_a_sentence(text: str) -> None:
    assert len(text) < 1000
    assert "\n" not in text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "message", "delta", "content", "tool_calls", "function", "usage"])
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)
BODIES = st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode())


@given(BODIES)
def test_any_body_is_a_completion_or_a_sentence(body: bytes) -> None:
    assert_is_a_sentence(sentence_of(lambda text: completion.defects(completion.parse(text)), body))


@given(st.lists(BODIES, max_size=5))
def test_any_stream_is_a_completion_or_a_sentence(bodies: list[bytes]) -> None:
    lines = [line for body in bodies for line in (b"data: " + body).split(b"\n")]
    lines.append(b"data: [DONE]")
    assert_is_a_sentence(sentence_of(lambda _: completion.defects(completion.gather(lines)[0]), b""))


@given(st.binary(max_size=300))
def test_any_bytes_in_place_of_an_answer_end_in_a_sentence(raw: bytes) -> None:
    server = exchange.server("http://127.0.0.1:1")
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        theirs.sendall(raw)
        theirs.shutdown(socket.SHUT_WR)

        def connection() -> Any:
            found = http.client.HTTPConnection("127.0.0.1", 1)
            found.sock = ours
            return found

        object.__setattr__(server, "_connection", connection)
        said = sentence_of(lambda _: completion.parse(server.post("/v1/chat/completions", {})), b"")
        assert_is_a_sentence(said)
