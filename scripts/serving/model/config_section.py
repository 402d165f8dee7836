# SPDX-License-Identifier: Apache-2.0
"""One object of ``config.json``, together with the configuration class that fills in what it lacks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from serving.findings import Finding, note, problem

from .config_source import ConfigClass

STOPS = "vLLM reads it and stops with an AttributeError"
"""What happens without most fields."""

_MOST = 1 << 24
"""Bound on a size that a config may claim, so that a broken one cannot ask for endless lists."""


class Section:
    """One object of config.json, with the class that fills in what it lacks.

    Each reader returns a value that fits its type in any case; ``usable`` says whether all
    that the shapes depend on was really there.
    """

    def __init__(
        self, name: str, values: Mapping[str, Any], code: ConfigClass | None, findings: list[Finding]
    ) -> None:
        self.name = name
        self.values = values
        self.code = code
        self.findings = findings
        self.usable = True
        self._from_code: list[str] = []
        self._read: list[str] = []

    def value(self, key: str) -> Any:
        """The value of a field, None if it is null or nowhere."""
        self._read.append(key)
        if key in self.values:
            return self.values[key]
        if self.code and key in self.code.sets:
            self._from_code.append(key)
            return self.code.defaults.get(key)
        return None

    def whole(self, key: str, missing: str = STOPS, lowest: int = 1, highest: int = _MOST) -> int:
        """A whole number that shapes depend on."""
        found = self.value(key)
        if is_whole(found) and lowest <= found <= highest:
            return int(found)
        self.usable = False
        if found is None:
            self._missing(key, missing)
        else:
            self._wrong(key, found, f"a whole number from {lowest} to {highest}")
        return lowest

    def number(self, key: str, missing: str = STOPS) -> float:
        """A positive number that shapes depend on."""
        found = self.value(key)
        if is_number(found) and 0 < found < _MOST:
            return float(found)
        self.usable = False
        if found is None:
            self._missing(key, missing)
        else:
            self._wrong(key, found, "a positive number")
        return 1.0

    def flag(self, key: str, missing: str = STOPS, *, published: bool) -> bool:
        """A switch; where it is nowhere, the shapes are counted as published."""
        found = self.value(key)
        if isinstance(found, bool):
            return found
        if found is None:
            self._missing(key, missing)
        else:
            self._wrong(key, found, "true or false")
        return published

    def has(self, key: str) -> bool:
        """The field is in config.json, maybe as null, or the code sets it."""
        return key in self.values or (self.code is not None and key in self.code.sets)

    def needed(self, key: str, missing: str = STOPS) -> Any:
        """A field of any type that has to be there; None if it is null or not there."""
        if not self.has(key):
            self._missing(key, missing)
        return self.value(key)

    def required(self, key: str, missing: str) -> Any:
        """A field of any type that shapes depend on; None if it is null or not there."""
        found = self.value(key)
        if found is None:
            self.usable = False
            self._missing(key, missing)
        return found

    def must_be(self, key: str, wanted: object, otherwise: str) -> None:
        """A field for which vLLM accepts one value alone."""
        found = self.needed(key)
        known = key in self.values or (self.code is not None and key in self.code.defaults)
        if known and found != wanted:
            self.problem("config-value", key, f"is {show(found)}: {otherwise}")

    def per_layer(self, key: str, found: object, layers: int, mtp: int, too_short: str) -> list[Any]:
        """A list with an entry for each layer; the published ones go on for the MTP layers."""
        if not isinstance(found, list):
            self._wrong(key, found, "a list with one entry for each layer")
            return []
        if len(found) < layers:
            counted = f"has {len(found)} entries for {layers} layers"
            self.problem("config-list", key, f"{counted}: {too_short}")
        elif len(found) not in {layers, layers + mtp}:
            expected = f"{layers} layers and {mtp} MTP layers"
            what = f"has {len(found)} entries where {expected} are expected; the first {layers} are read"
            self.findings.append(note("config-list", self.subject(key), what))
        return found

    def problem(self, name: str, key: str, what: str) -> None:
        cure = "fetch the model's own config.json again"
        self.findings.append(problem(name, self.subject(key), what, cure))

    def subject(self, key: str) -> str:
        return f"config.json {self.name}{key}"

    def report_code(self) -> None:
        """What comes out of the configuration code, and what that code would drop."""
        if self._from_code:
            source = f"class {self.code.name}" if self.code else ""
            fields = ", ".join(dict.fromkeys(self._from_code))
            what = f"not in config.json, set by {source}: {fields}"
            self.findings.append(note("config-from-code", f"config.json {self.name or 'top level'}", what))
        if self.code is None or self.code.keeps_other_fields or not self.code.known_base:
            return
        dropped = [
            key for key in dict.fromkeys(self._read) if key in self.values and key not in self.code.sets
        ]
        if dropped:
            fields = ", ".join(dropped)
            what = f"class {self.code.name} neither sets nor hands on: {fields}; vLLM never sees them"
            cure = "fetch the model's own configuration code again"
            self.findings.append(
                problem("config-dropped", f"config.json {self.name or 'top level'}", what, cure)
            )

    def _missing(self, key: str, consequence: str) -> None:
        if key in self.values:
            self.problem("config-field", key, f"is null: {consequence}")
            return
        if self.code is None or not self.code.known_base or key in self.code.sets:
            what = "is not there; whether the configuration code sets it cannot be told without running it"
            self.findings.append(note("config-field-unknown", self.subject(key), what))
            return
        self.problem(
            "config-field", key, f"is not there, and class {self.code.name} sets none: {consequence}"
        )

    def _wrong(self, key: str, found: object, wanted: str) -> None:
        self.problem("config-value", key, f"is {show(found)}, where {wanted} is needed")


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """A finite number that a float can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


def show(value: object) -> str:
    """A value of unknown size and kind, short enough for a sentence."""
    if isinstance(value, dict):
        return f"an object of {len(value)} entries"
    if isinstance(value, list):
        plain = len(value) <= 3 and not any(isinstance(entry, list | dict) for entry in value)
        return f"[{', '.join(map(show, value))}]" if plain else f"a list of {len(value)} entries"
    shown = json.dumps(value[:80] if isinstance(value, str) else value, ensure_ascii=False)
    return shown if len(shown) <= 80 else shown[:77] + "..."
