# SPDX-License-Identifier: Apache-2.0
"""Tells at little cost that a line of a log shows nothing: most of them do not, and most repeat their words.

Digits are taken out of a line before anything else. A sign without its digits has a longest piece
without spaces, and where the sign is in the line, that piece is in one of the line's words. So a
word that has none of the pieces is innocent, wherever it stands, and so is a line of such words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import InitVar, dataclass, field

_KEPT_WORDS = 1 << 16
_KEPT_LINES = 1 << 14
_KEPT_LENGTH = 400
"""So much is remembered, and no word or line that is longer."""

_DIGITS = b"0123456789"


def letters(text: bytes) -> bytes:
    """A line or a sign without its digits."""
    return text.translate(None, _DIGITS)


def longest_piece(sign: str) -> bytes:
    return max(letters(sign.encode()).split(), key=len)


@dataclass
class Screen:
    """``pieces`` are those of all signs; ``may_show`` tells of a word what else counts."""

    pieces: InitVar[Iterable[bytes]]
    may_show: Callable[[bytes], bool]
    _words: set[bytes] = field(default_factory=set)
    _lines: set[bytes] = field(default_factory=set)

    def __post_init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = re.compile(b"|".join(map(re.escape, sorted(pieces))))

    def holds_back(self, line: bytes) -> bool:
        """Is there nothing in a line (its digits taken out) that could be a sign?"""
        if line in self._lines:
            return True
        words = line.split()
        return self._words.issuperset(words) or all(map(self._is_innocent, words))

    def remember(self, line: bytes) -> None:
        """This line was let through, and showed nothing all the same."""
        if len(line) <= _KEPT_LENGTH and len(self._lines) < _KEPT_LINES:
            self._lines.add(line)

    def _is_innocent(self, word: bytes) -> bool:
        if word in self._words:
            return True
        if self.may_show(word) or self._pieces.search(word):
            return False
        if len(word) <= _KEPT_LENGTH and len(self._words) < _KEPT_WORDS:
            self._words.add(word)
        return True
