# SPDX-License-Identifier: Apache-2.0
"""What a user meets on the real server without the set, and with half of it; before apply and after revert.

After apply nothing of it is left: `test_server_answers` serves the folder with remote code,
`test_server_settings` the plain one.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cases import Serve
from e2e.chat import refusal, say
from e2e.roots import ENTRY, TOKENIZERS, edit, replace
from e2e.server import HOST, Server, ServerFailed
from target.conftest import copy_root
from tiny.conversations import LONG_CHINESE, ask, prompt_ids

pytest_plugins = ["e2e.server_fixtures"]

WITHOUT_THE_SET = ["pristine_root", "reverted_root"]
BEFORE_AND_AFTER = ["before apply", "after revert"]


@pytest.fixture(params=WITHOUT_THE_SET, ids=BEFORE_AND_AFTER)
def root_without_the_set(request: pytest.FixtureRequest) -> Path:
    return Path(request.getfixturevalue(request.param))


def test_without_the_set_a_folder_with_remote_code_stops_in_the_generic_wrapper(
    serve: Serve, root_without_the_set: Path, published_form: Path
) -> None:
    message = "'Step3VLProcessor' object has no attribute '_get_num_multimodal_tokens'"

    with pytest.raises(ServerFailed, match=message), serve(root_without_the_set, published_form):
        pass


def test_without_the_set_a_folder_without_remote_code_is_refused_by_name(
    serve: Serve, root_without_the_set: Path, flat_model: Path
) -> None:
    message = r"Model architectures \['Step3p7ForConditionalGeneration'\] are not supported for now"

    with pytest.raises(ServerFailed, match=message), serve(root_without_the_set, flat_model):
        pass


# --- without the tokenizer's edit ---


@pytest.fixture(scope="module")
def losing_server(
    serve: Serve,
    pristine_root: Path,
    patched_root: Path,
    flat_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    root = copy_root(patched_root, tmp_path_factory.mktemp("half") / "root")
    replace(root / TOKENIZERS, (pristine_root / TOKENIZERS).read_text("utf-8"))
    with serve(root, flat_model) as server:
        yield server


def test_without_the_tokenizer_edit_the_answer_is_http_200_to_a_question_that_was_lost(
    losing_server: Server, flat_model: Path
) -> None:
    expected = len(prompt_ids(flat_model, LONG_CHINESE))

    answer = say(losing_server, ask(LONG_CHINESE))  # no error

    assert answer.usage.prompt_tokens < expected / 4


def test_without_the_tokenizer_edit_two_questions_are_the_same_prompt(losing_server: Server) -> None:
    prompts = [
        say(losing_server, ask(question), extra={"return_token_ids": True}).prompt_token_ids
        for question in ("北京在哪里？", "今天几号？")
    ]

    assert prompts[0] == prompts[1]


# --- the entry in the set without the wrapper ---


@pytest.fixture(scope="module")
def unwrapped_server(
    serve: Serve,
    pristine_root: Path,
    patched_root: Path,
    flat_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    root = copy_root(patched_root, tmp_path_factory.mktemp("half") / "root")
    replace(root / TOKENIZERS, (pristine_root / TOKENIZERS).read_text("utf-8"))
    edit(root / TOKENIZERS, *ENTRY)
    with serve(root, flat_model) as server:
        yield server


@pytest.mark.parametrize("text", ["你好", "hello"])
def test_without_the_wrapper_every_chat_is_http_500(unwrapped_server: Server, text: str) -> None:
    error = refusal(unwrapped_server, ask(text))

    assert error.status_code == http.client.INTERNAL_SERVER_ERROR
    assert "TokenizersBackend has no attribute max_chars_per_token" in str(error)


def test_without_the_wrapper_the_server_is_healthy_and_tokenize_works(
    unwrapped_server: Server, flat_model: Path
) -> None:
    counted = post(unwrapped_server, "/tokenize", {"messages": ask(LONG_CHINESE)})

    assert unwrapped_server.is_healthy()
    assert counted["count"] == len(prompt_ids(flat_model, LONG_CHINESE))


def post(server: Server, path: str, body: dict[str, Any]) -> Any:
    connection = http.client.HTTPConnection(HOST, server.port, timeout=60)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()
