# SPDX-License-Identifier: Apache-2.0
"""The verbs of the kit: each from its options to its answer.

A run costs what its imports cost, so it imports the module of the verb it was given alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .request import Verb

_MODULES = {
    "patching": ("status", "apply", "verify", "diff", "revert", "overlay", "sets"),
    "starting": ("fetch", "doctor", "check-model", "plan", "preflight", "flags", "explain"),
    "asking": ("bench", "report", "smoke"),
    "accepting": ("accept",),
    "completion": ("completion",),
}
_MODULE_OF = {verb: module for module, verbs in _MODULES.items() for verb in verbs}

NAMES = tuple(_MODULE_OF)
"""Every verb, in the order of the help."""


def load(name: str) -> Verb:
    """A verb of ``NAMES``, from the module that has it."""
    found: Verb = importlib.import_module(f".{_MODULE_OF[name]}", __name__).VERBS[name]
    return found
