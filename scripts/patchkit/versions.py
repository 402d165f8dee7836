# SPDX-License-Identifier: Apache-2.0
"""As much of PEP 440 as a release number needs: ``0.20.2rc1+empty``, and no more."""

from __future__ import annotations

import re
from dataclasses import dataclass

_RELEASE = re.compile(
    r"v?(\d{1,9}(?:\.\d{1,9})*)(?:(a|b|rc)(\d{1,9}))?(?:\.post(\d{1,9}))?(?:\+.*)?", re.ASCII
)
_FINAL = 3
_STAGES = {"a": 0, "b": 1, "rc": 2, None: _FINAL}


@dataclass(frozen=True, order=True)
class Release:
    """A published release, comparable. The local part (``+empty``) does not count."""

    numbers: tuple[int, ...]
    stage: int
    stage_number: int
    post: int


def parse(text: str) -> Release | None:
    """The release that a version string names, or None for one that names none.

    ``0.1.dev1+g0123abc.empty`` names none: a build from a checkout without tags says
    that of any source, so it is no reason to refuse and none to trust.
    """
    match = _RELEASE.fullmatch(text.strip())
    if match is None:
        return None
    numbers = [int(n) for n in match[1].split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return Release(tuple(numbers), _STAGES[match[2]], int(match[3] or 0), int(match[4] or 0))
