# SPDX-License-Identifier: Apache-2.0
"""The Python that a model folder brings along, as ``auto_map`` of config.json names it. None of it is run.

transformers 5.5.3 does not know ``step3p7``: with ``--trust-remote-code`` it runs the folder's
configuration module, and without that module there is no config object and no start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.bounded import Unreadable, exists, read
from serving.findings import Finding, note, ok, problem, warning

from . import config_source
from .config_section import show
from .config_source import Module

FILE = "configuration_step3p7.py"

_REFERENCE = re.compile(r"(?:(?P<repository>[^\s]+)--)?(?P<module>\w+)\.(?P<class_name>\w+)", re.ASCII)
"""``[owner/repo--]module.Class``, as transformers' ``get_class_from_dynamic_module`` takes it apart."""


@dataclass(frozen=True)
class RemoteCode:
    """The configuration module, None where there is none to read, and the class in it that counts."""

    module: Module | None
    entry: str
    findings: tuple[Finding, ...]


def inspect(folder: Path, values: Mapping[str, Any]) -> RemoteCode:
    """The configuration code that config.json (``values``) calls for."""
    auto_map = values.get("auto_map")
    if not isinstance(auto_map, dict) or "AutoConfig" not in auto_map:
        return RemoteCode(None, "", (_no_auto_map(folder, auto_map),))
    reference = auto_map["AutoConfig"]
    match = _REFERENCE.fullmatch(reference) if isinstance(reference, str) else None
    if match is None:
        what = f'is {show(reference)}, where "module.Class" is needed'
        cure = "fetch the model's own config.json again"
        return RemoteCode(None, "", (problem("auto-map", "config.json auto_map.AutoConfig", what, cure),))
    file = f"{match['module']}.py"
    findings = [_elsewhere(folder, file, match)] if match["repository"] else []
    if match["repository"] and not exists(folder / file):
        return RemoteCode(None, match["class_name"], tuple(findings))
    module, of_file = _module(folder, file, match["class_name"])
    findings += [*of_file, *_other_references(folder, auto_map)]
    return RemoteCode(module, match["class_name"], tuple(findings))


def _no_auto_map(folder: Path, found: object) -> Finding:
    what = f"has no AutoConfig ({show(found)}): transformers 5.5.3 does not know step3p7 by itself"
    if exists(folder / FILE):
        what += f", and never looks at the {FILE} that is there"
    cure = f'fetch config.json again; it should hold "AutoConfig": "{FILE.removesuffix(".py")}.Step3p7Config"'
    return problem("auto-map", "config.json auto_map", what, cure)


def _elsewhere(folder: Path, file: str, match: re.Match[str]) -> Finding:
    """``auto_map`` names another repository: its code is fetched at start, or not found offline."""
    what = (
        f"points to the repository {match['repository']}: vLLM would fetch and run that code, "
        "not this folder's, and offline it stops"
    )
    local = f"{match['module']}.{match['class_name']}"
    where = "" if exists(folder / file) else f"put {file} of that repository into this folder, and "
    return problem(
        "auto-map-remote", "config.json auto_map.AutoConfig", what, f'{where}write "{local}" instead'
    )


def _module(folder: Path, file: str, class_name: str) -> tuple[Module | None, list[Finding]]:
    cure = "fetch this file of the model's repository again"
    try:
        source = read(folder / file, config_source.LIMIT)
    except Unreadable as error:
        what = f"{error}, and auto_map names it; vLLM cannot build the config without it"
        return None, [problem("configuration-missing", file, what, cure)]
    try:
        module = config_source.parse(source, file)
    except Unreadable as error:
        return None, [problem("configuration-broken", file, str(error), cure)]
    absent = [name for name in module.relative_imports if not exists(folder / f"{name}.py")]
    if absent:
        what = f"imports {', '.join(absent)} beside it, which is not there"
        return module, [problem("configuration-imports", file, what, cure)]
    if class_name not in module.classes:
        known = ", ".join(module.classes) or "none"
        what = f"defines no class {class_name}, which auto_map names (it has: {known})"
        return module, [problem("configuration-class", file, what, cure)]
    what = f"compiles and defines {class_name} (read, not run)"
    return module, [ok("configuration", file, what)]


def _other_references(folder: Path, auto_map: Mapping[str, Any]) -> list[Finding]:
    """Modelling and processing code: not needed by vLLM 0.20.2 with this set, and misleading without it."""
    others = [key for key in auto_map if key != "AutoConfig"]
    findings = []
    missing = [file for key in others if (file := _file_of(auto_map[key])) and not exists(folder / file)]
    if missing:
        what = f"{', '.join(dict.fromkeys(missing))} not there, though auto_map names it"
        cure = "fetch the model's own files again"
        findings.append(warning("auto-map-files", "config.json auto_map", what, cure))
    if "AutoModelForCausalLM" in others:
        what = (
            "brings modelling code; an unpatched vLLM falls back to it and stops with "
            "_get_num_multimodal_tokens, a patched one does not use it"
        )
        findings.append(note("modelling-code", "config.json auto_map", what))
    return findings


def _file_of(reference: object) -> str | None:
    """The local file of one reference; None for another repository's, or for no reference at all."""
    match = _REFERENCE.fullmatch(reference) if isinstance(reference, str) else None
    return f"{match['module']}.py" if match and not match["repository"] else None
