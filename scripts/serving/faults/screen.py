# SPDX-License-Identifier: Apache-2.0
"""Finds at little cost the signs that a line may show: most lines show none, and most repeat their words.

Digits are taken out of a line before anything else. A sign without its digits has a longest piece
without spaces, and where the sign is in the line, that piece is in one of the line's words. What a
word can be a piece of is found once and remembered.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_KEPT_WORDS = 1 << 16
_KEPT_LINES = 1 << 14
_KEPT_LENGTH = 400
"""So much is remembered, and no word or line that is longer."""

_DIGITS = b"0123456789"


def letters(text: bytes) -> bytes:
    """A line or a sign without its digits."""
    return text.translate(None, _DIGITS)


class Screen:
    """Of signs without their digits. Lines are given without theirs too."""

    def __init__(self, signs: Iterable[bytes]) -> None:
        self._signs = tuple((max(sign.split(), key=len), sign) for sign in signs)
        pieces = sorted({piece for piece, _ in self._signs})
        self._any_piece = re.compile(b"|".join(map(re.escape, pieces)))
        self._words: dict[bytes, tuple[bytes, ...]] = {}
        self._nothing: set[bytes] = set()
        """Words that are no piece of any sign, and whole lines that show none."""

    def signs_in(self, line: bytes) -> Sequence[bytes]:
        """The signs that stand in a line."""
        if line in self._nothing:
            return ()
        words = line.split()
        if self._nothing.issuperset(words):
            return ()
        suspects = {sign for word in words if word not in self._nothing for sign in self._suspects(word)}
        found = [sign for sign in suspects if sign in line]
        if not found and len(self._nothing) < _KEPT_LINES and len(line) <= _KEPT_LENGTH:
            self._nothing.add(line)
        return found

    def _suspects(self, word: bytes) -> tuple[bytes, ...]:
        """The signs that have their longest piece in this word."""
        known = self._words.get(word)
        if known is not None:
            return known
        found: tuple[bytes, ...] = ()
        if self._any_piece.search(word):
            found = tuple(sign for piece, sign in self._signs if piece in word)
        if len(word) > _KEPT_LENGTH:
            return found
        if found and len(self._words) < _KEPT_WORDS:
            self._words[word] = found
        elif not found and len(self._nothing) < _KEPT_WORDS:
            self._nothing.add(word)
        return found
