# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of the tiny model: byte-level BPE, trained on a few Chinese and English lines.

As in the published one, ``tokenizer_config.json`` names a class that does not fit. Under
transformers 5 ``LlamaTokenizerFast`` puts a pre-tokenizer of its own in the place of the
file's, and all that is not ASCII letters vanishes; ``TokenizersBackend`` reads the file as it is.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer

HERE = Path(__file__).resolve().parent

FIRST = ("<|begin|>", "<|end|>", "<|pad|>")
"""Ids 0, 1 and 2."""

FIRST_ADDED = 960
"""The published model's is 128000. Behind it the same order: <im_patch> is 1, <|im_end|> is 7."""

CONTROL = (
    "<im_start>",
    "<im_patch>",
    "<im_end>",
    "<patch_start>",
    "<patch_end>",
    "<patch_newline>",
    "<|im_start|>",
    "<|im_end|>",
)
"""Left out when an answer is decoded. What the parsers look for is not."""

SEEN = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

VOCABULARY = 1024
"""A multiple of 64: vLLM has no row to pad. The ids behind the named tokens are reserved ones."""

_RESERVED = VOCABULARY - FIRST_ADDED - len(CONTROL) - len(SEEN)
_ADDED = (*CONTROL, *SEEN, *(f"<|reserved_{index}|>" for index in range(_RESERVED)))
IDS = {token: FIRST_ADDED + index for index, token in enumerate(_ADDED)}
IMAGE_TOKEN = IDS["<im_patch>"]
BEGIN, END, PAD = range(3)
STOPS = [END, PAD, IDS["<|im_end|>"]]

# Digits one to three at a time, runs of Chinese, and words with the space before them.
_SPLITS = (r"\p{N}{1,3}", r"[一-鿿぀-ヿ]+", r"[\r\n]+| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")


def write_tokenizer(folder: Path) -> None:
    """``tokenizer.json``, ``tokenizer_config.json`` and ``chat_template.jinja``."""
    train().save(str(folder / "tokenizer.json"), pretty=False)
    template = (HERE / "chat_template.jinja").read_text("utf-8")
    (folder / "chat_template.jinja").write_text(template, "utf-8")
    begin, end, pad = FIRST
    metadata = {
        "add_bos_token": False,
        "add_eos_token": False,
        "bos_token": begin,
        "clean_up_tokenization_spaces": False,
        "eos_token": end,
        "legacy": True,
        "model_max_length": 8192,
        "pad_token": pad,
        "tokenizer_class": "LlamaTokenizerFast",
        "unk_token": None,
        "use_default_system_prompt": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(metadata, indent=2) + "\n", "utf-8")


def train() -> Tokenizer:
    """The same tokenizer every time: all it depends on is ``corpus.txt``."""
    tokenizer = Tokenizer(BPE())
    splits = [Split(Regex(pattern), "isolated") for pattern in _SPLITS]
    tokenizer.pre_tokenizer = Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=FIRST_ADDED,
        special_tokens=list(FIRST),
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    lines = (HERE / "corpus.txt").read_text("utf-8").splitlines(keepends=True)
    tokenizer.train_from_iterator(lines[1:], trainer)  # the first is the licence
    if tokenizer.get_vocab_size() != FIRST_ADDED:
        raise ValueError(f"the corpus gives {tokenizer.get_vocab_size()} tokens, {FIRST_ADDED} are wanted")
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=token not in SEEN) for token in _ADDED])
    return tokenizer
