# SPDX-License-Identifier: Apache-2.0
"""What all stand-ins for operators of ``torch_npu`` share: no default is taken for granted.

What a stand-in does not model raises `NotModelled`, what the documentation rules out a
`ValueError`: a test cannot pass by a default.
"""

from __future__ import annotations

from typing import NoReturn

calls: list[str] = []
"""The operators called, in their order. A test that asks clears it first."""


class NotModelled(Exception):
    """The real operator may well do this; the stand-in does not."""


def model(modelled: bool, what: str) -> None:
    if not modelled:
        raise NotModelled(what)


def require(valid: bool, trouble: str) -> None:
    """What the documentation rules out."""
    if not valid:
        refuse(trouble)


def refuse(trouble: str) -> NoReturn:
    raise ValueError(trouble)
