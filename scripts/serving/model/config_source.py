# SPDX-License-Identifier: Apache-2.0
"""What a model folder's ``configuration_*.py`` sets, read off its syntax tree. It is never run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from patchkit import names
from serving.bounded import Unreadable

LIMIT = 2 * 1024 * 1024
"""Bytes. A configuration module has some thousands."""

_PLAIN_BASES = frozenset({"PretrainedConfig", "PreTrainedConfig"})


@dataclass(frozen=True)
class ConfigClass:
    """One class of the module.

    ``defaults`` holds what is written as a literal (a parameter's default, a class attribute);
    ``sets`` also the names whose value only running the code would give.
    """

    name: str
    model_type: str | None
    sets: frozenset[str]
    defaults: Mapping[str, Any]
    keeps_other_fields: bool
    """Fields of config.json that it does not know reach the object (``**kwargs`` handed on)."""
    known_base: bool
    """It stands on transformers' base class, directly or through classes of this module."""


@dataclass(frozen=True)
class Module:
    """All classes of one configuration module, by name."""

    classes: Mapping[str, ConfigClass]
    relative_imports: tuple[str, ...] = field(default=())
    """Modules beside it that it needs (``from .other import …``)."""

    def for_part(self, model_type: object, words: tuple[str, ...]) -> ConfigClass | None:
        """The class of a part of the model: by its ``model_type``, else by a word in its name."""
        found = [c for c in self.classes.values() if c.model_type is not None and c.model_type == model_type]
        found += [c for c in self.classes.values() if any(word in c.name for word in words)]
        return found[0] if found else None


def parse(source: bytes, name: str) -> Module:
    """The classes of a module.

    Raises:
        Unreadable: it does not compile, or uses a name that nothing defines.
    """
    try:
        faults = names.problems(source, name)
    except (SyntaxError, UnicodeDecodeError):
        raise Unreadable("cannot be imported: it is not in the encoding that it claims") from None
    if faults:
        first = faults[0]
        line = f"line {first.line}: " if first.line else ""
        raise Unreadable(f"cannot be imported: {line}{first.text}")
    try:
        tree = ast.parse(source, name)
        nodes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        classes = {class_name: _class(node, nodes) for class_name, node in nodes.items()}
    except RecursionError:
        raise Unreadable("is nested too deeply to be read") from None
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 1]
    needed = [name for node in imports for name in _modules(node)]
    return Module(classes, tuple(dict.fromkeys(needed)))


def _modules(node: ast.ImportFrom) -> list[str]:
    if node.module:
        return [node.module.split(".")[0]]
    return [alias.name for alias in node.names]


def _class(node: ast.ClassDef, nodes: Mapping[str, ast.ClassDef]) -> ConfigClass:
    line, known_base = _line_of_descent(node, nodes)
    defaults: dict[str, Any] = {}
    sets: set[str] = set()
    keeps = True
    for ancestor in reversed(line):
        constructor = _constructor(ancestor)
        found = {**_class_attributes(ancestor), **(_parameter_defaults(constructor) if constructor else {})}
        sets |= found.keys()
        defaults |= {key: value for key, value in found.items() if value is not _UNKNOWN}
        if constructor:
            sets |= set(_self_attributes(constructor))
            keeps = keeps and _hands_on_kwargs(constructor)
    model_type = defaults.get("model_type")
    return ConfigClass(
        name=node.name,
        model_type=model_type if isinstance(model_type, str) else None,
        sets=frozenset(sets),
        defaults=defaults,
        keeps_other_fields=keeps,
        known_base=known_base,
    )


def _line_of_descent(
    node: ast.ClassDef, nodes: Mapping[str, ast.ClassDef]
) -> tuple[list[ast.ClassDef], bool]:
    """The class and its bases within the module, nearest first, and whether it ends in a plain base."""
    line = [node]
    while True:
        bases = [_last_name(base) for base in line[-1].bases]
        if any(base in _PLAIN_BASES for base in bases):
            return line, True
        within = [nodes[base] for base in bases if base in nodes and nodes[base] not in line]
        if not within:
            return line, False
        line.append(within[0])


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


class _Unknown:
    """Stands for a value that is no literal."""


_UNKNOWN = _Unknown()


def _literal(node: ast.expr | None) -> Any:
    if node is None:
        return _UNKNOWN
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return _UNKNOWN


def _class_attributes(node: ast.ClassDef) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            found[statement.target.id] = _literal(statement.value)
        elif isinstance(statement, ast.Assign):
            found |= {t.id: _literal(statement.value) for t in statement.targets if isinstance(t, ast.Name)}
    return found


def _constructor(node: ast.ClassDef) -> ast.FunctionDef | None:
    found = [s for s in node.body if isinstance(s, ast.FunctionDef) and s.name == "__init__"]
    return found[-1] if found else None


def _parameter_defaults(constructor: ast.FunctionDef) -> dict[str, Any]:
    """Defaults of the parameters that the constructor keeps as attributes of the same name."""
    arguments = constructor.args
    positional = [*arguments.posonlyargs, *arguments.args]
    with_default = positional[len(positional) - len(arguments.defaults) :]
    pairs = [*zip(with_default, arguments.defaults, strict=True)]
    pairs += [(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d]
    kept = set(_self_attributes(constructor))
    return {argument.arg: _literal(default) for argument, default in pairs if argument.arg in kept}


def _self_attributes(constructor: ast.FunctionDef) -> Iterator[str]:
    """Names that the constructor assigns to ``self``, on whatever path."""
    for node in ast.walk(constructor):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        ):
            yield node.attr


def _hands_on_kwargs(constructor: ast.FunctionDef) -> bool:
    """``super().__init__(…, **kwargs)`` with the constructor's own ``**kwargs``."""
    if constructor.args.kwarg is None:
        return False
    name = constructor.args.kwarg.arg
    return any(
        keyword.arg is None and isinstance(keyword.value, ast.Name) and keyword.value.id == name
        for node in ast.walk(constructor)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
    )
