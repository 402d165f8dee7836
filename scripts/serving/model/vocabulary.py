# SPDX-License-Identifier: Apache-2.0
"""How few tokens a text can be, by the vocabulary of a byte-level BPE ``tokenizer.json``.

BPE itself is not rebuilt here. Whatever merges it takes, its tokens are entries of the
vocabulary that together spell the text, so their number is never below that of the shortest
such spelling and never above that of the text's bytes. A tokenizer that loses text is below.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from serving import bounded

from .tokenizer_files import VOCABULARY

_LIMIT = 256 * 1024 * 1024
_LONGEST = 64
"""Bytes of an entry that is looked for; a longer one (runs of spaces) plays no part in a sentence."""


def _letters() -> dict[int, str]:
    """The printable character that stands for each byte in a byte-level vocabulary (as GPT-2 chose them)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + n) for n, byte in enumerate(others)}


_LETTERS = _letters()


def entries(folder: Path) -> frozenset[str]:
    """The vocabulary of a model folder, in its own letters.

    Raises:
        Unreadable: there is no ``tokenizer.json``, or it holds no vocabulary.
    """
    model = bounded.read_json_object(folder / VOCABULARY, _LIMIT).get("model")
    found = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(found, dict) or not found:
        raise bounded.Unreadable("holds no vocabulary")
    return frozenset(found)


def fewest_tokens(text: str, vocabulary: Iterable[str]) -> int | None:
    """The least number of entries that spell the text, None where they cannot.

    The shortest path over the bytes: best[i] = min(best[j] + 1) where bytes j..i are an entry.
    """
    known = vocabulary if isinstance(vocabulary, frozenset) else frozenset(vocabulary)
    letters = "".join(_LETTERS[byte] for byte in text.encode("utf-8"))
    best: list[int | None] = [0]
    for end in range(1, len(letters) + 1):
        starts = range(max(0, end - _LONGEST), end)
        reached = [
            before + 1
            for start in starts
            if (before := best[start]) is not None and letters[start:end] in known
        ]
        best.append(min(reached, default=None))
    return best[-1]
