# SPDX-License-Identifier: Apache-2.0
"""Tokenizer, chat template and generation defaults of a model folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from serving.bounded import Unreadable, exists, read, read_json_object, regular_size
from serving.findings import Finding, note, ok, problem, warning

from .config_section import show

CONFIG = "tokenizer_config.json"
VOCABULARY = "tokenizer.json"
TEMPLATE = "chat_template.jinja"
PROCESSOR_TEMPLATE = "chat_template.json"
GENERATION = "generation_config.json"
IMAGE_TOKEN = "<im_patch>"  # noqa: S105 - a token of text

_LIMIT = 16 * 1024 * 1024
_VOCABULARY_LIMIT = 256 * 1024 * 1024
_AGAIN = "fetch this file of the model's repository again"
_REPLACES_PRE_TOKENIZER = frozenset({"LlamaTokenizer", "LlamaTokenizerFast"})
_READS_FILE_AS_IT_IS = frozenset({"TokenizersBackend", "PreTrainedTokenizerFast"})


def check(folder: Path, image_token_id: object) -> tuple[Finding, ...]:
    """All findings; ``image_token_id`` is that of config.json, of whatever type."""
    values, findings = _config(folder)
    findings += [
        *_vocabulary(folder),
        *_class(values),
        *_image_token(values, image_token_id),
        *_template(folder, values),
        *_generation(folder),
    ]
    return tuple(findings)


def _config(folder: Path) -> tuple[Mapping[str, Any], list[Finding]]:
    try:
        return read_json_object(folder / CONFIG, _LIMIT), []
    except Unreadable as error:
        return {}, [problem("tokenizer-config", CONFIG, str(error), _AGAIN)]


def _vocabulary(folder: Path) -> Iterator[Finding]:
    try:
        size = regular_size(folder / VOCABULARY)
        if not 0 < size <= _VOCABULARY_LIMIT:
            raise Unreadable(f"has {size} bytes")
        with (folder / VOCABULARY).open("rb") as file:
            start = file.read(64)
        if not start.lstrip().startswith(b"{"):
            raise Unreadable("is not JSON (a git-lfs pointer?)")
    except Unreadable as error:
        yield problem("tokenizer-missing", VOCABULARY, str(error), _AGAIN)
    except OSError as error:
        yield problem("tokenizer-missing", VOCABULARY, f"cannot be read ({error.strerror})", _AGAIN)


def _class(values: Mapping[str, Any]) -> Iterator[Finding]:
    """``tokenizer_class``, and what follows from it under transformers 5."""
    if not values:
        return
    found = values.get("tokenizer_class")
    if not isinstance(found, str):
        found = ""
    if found in _REPLACES_PRE_TOKENIZER:
        what = (
            f"names {found}, which under transformers 5 replaces the pre-tokenizer: Chinese, spaces and line "
            "ends vanish (prompt_tokens of 7 or 8). The set's tokenizer edit steps around it"
        )
        yield note("tokenizer-class", CONFIG, what, "{kit} verify shows whether the edit is in place")
    elif found in _READS_FILE_AS_IT_IS:
        yield ok("tokenizer-class", CONFIG, f"names {found}, which reads {VOCABULARY} as it is")
    else:
        what = f"names {show(found)}, the published file LlamaTokenizerFast; the set loads TokenizersBackend"
        yield note("tokenizer-class", CONFIG, what)


def _image_token(values: Mapping[str, Any], image_token_id: object) -> Iterator[Finding]:
    """The id of <im_patch> in tokenizer_config.json, where it lists the added tokens, against config.json."""
    added = values.get("added_tokens_decoder")
    if not isinstance(added, dict):
        return
    ids = [number for number, token in added.items() if _content(token) == IMAGE_TOKEN]
    if ids and str(image_token_id) not in ids:
        what = (
            f"gives {IMAGE_TOKEN} the id {ids[0][:20]}, config.json image_token_id is {show(image_token_id)}"
        )
        yield problem("image-token", CONFIG, what, "fetch both files from one place")


def _content(token: object) -> object:
    return token.get("content") if isinstance(token, dict) else None


def _template(folder: Path, values: Mapping[str, Any]) -> Iterator[Finding]:
    """The chat template: of its own file first, as transformers takes it, else in tokenizer_config.json."""
    try:
        if not read(folder / TEMPLATE, _LIMIT).strip():
            raise Unreadable("is empty")
    except Unreadable as error:
        if exists(folder / TEMPLATE):
            yield problem("chat-template", TEMPLATE, str(error), _AGAIN)
            return
    else:
        yield ok("chat-template", TEMPLATE, "is there")
        return
    if values.get("chat_template"):
        yield ok("chat-template", CONFIG, "holds the chat template")
    elif exists(folder / PROCESSOR_TEMPLATE):
        what = f"holds the only chat template, which a processor alone reads; no {TEMPLATE} is there"
        cure = f"write its text into {TEMPLATE}, or give that file to vllm serve --chat-template"
        yield warning("chat-template", PROCESSOR_TEMPLATE, what, cure)
    else:
        what = f"no chat template, neither in {CONFIG} nor as {TEMPLATE}: every chat request would fail"
        cure = f"fetch {TEMPLATE} of the model's repository, or use vllm serve --chat-template FILE"
        yield problem("chat-template", "tokenizer", what, cure)


def _generation(folder: Path) -> Iterator[Finding]:
    """generation_config.json, whose values vLLM takes as defaults of every request."""
    if not exists(folder / GENERATION):
        yield note("generation-config", GENERATION, "is not there; vLLM then samples with its own defaults")
        return
    try:
        values = read_json_object(folder / GENERATION, _LIMIT)
    except Unreadable as error:
        yield problem("generation-config", GENERATION, str(error), f"{_AGAIN}, or delete it")
        return
    names = [name for name in ("temperature", "top_p", "top_k", "repetition_penalty") if name in values]
    if names:
        listed = ", ".join(f"{name}={show(values[name])}" for name in names)
        yield note("generation-config", GENERATION, f"sets the defaults of every request: {listed}")
