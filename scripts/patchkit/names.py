# SPDX-License-Identifier: Apache-2.0
"""Does a source file compile, and does every name in it exist? Asked without running it.

A half-followed guide leaves files that import well and raise NameError in the first
forward pass that reaches the edit, twenty minutes into a start-up.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import symtable
from collections.abc import Iterator
from dataclasses import dataclass

_MODULE_NAMES = frozenset(
    {"__file__", "__path__", "__builtins__", "__annotations__", "__module__", "__qualname__"}
)
_BUILTINS = frozenset(dir(builtins)) | _MODULE_NAMES


@dataclass(frozen=True)
class Problem:
    """``line`` is 1-based, or None where Python gave none."""

    line: int | None
    text: str


def problems(source: bytes, name: str) -> tuple[Problem, ...]:
    """The syntax error, or every global name that is read but bound nowhere, by line.

    A file with ``from x import *`` is only compiled: what it binds cannot be known
    without running it.
    """
    try:
        tree = ast.parse(source, name)
        compile(source, name, "exec", dont_inherit=True)
        text = importlib.util.decode_source(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = error.lineno if isinstance(error, SyntaxError) else None
        return (Problem(line, f"{type(error).__name__}: {getattr(error, 'msg', error)}"),)
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree)):
        return ()
    table = symtable.symtable(text, name, "exec")
    undefined = _read_globals(table) - _bound_globals(table) - _BUILTINS
    found = [Problem(line, f"the name {n!r} is not defined") for n in undefined for line in _lines(tree, n)]
    return tuple(sorted(found, key=lambda problem: (problem.line or 0, problem.text)))


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _is_module(table: symtable.SymbolTable) -> bool:
    return table.get_type() == "module"


def _read_globals(table: symtable.SymbolTable) -> set[str]:
    return {
        symbol.get_name()
        for scope in _tables(table)
        for symbol in scope.get_symbols()
        if symbol.is_referenced() and (symbol.is_global() or _is_module(scope))
    }


def _bound_globals(table: symtable.SymbolTable) -> set[str]:
    """Names that the module binds, at its top or by a ``global`` statement."""
    return {
        symbol.get_name()
        for scope in _tables(table)
        for symbol in scope.get_symbols()
        if (symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace())
        and (symbol.is_declared_global() or _is_module(scope))
    }


def _lines(tree: ast.AST, name: str) -> list[int]:
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
    ][:1]
