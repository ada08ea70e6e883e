"""The syntax trees of functions, from the files that they are written in, each of which is parsed once.

Knows Python's functions; nothing of what is made of them.
"""

from __future__ import annotations

import ast
import builtins
import functools
import linecache
from collections.abc import Callable
from typing import Any

from graphml_cpu.frontend.values import UncompilableError

_parsed: dict[str, tuple[list[str], dict[tuple[str, int], ast.FunctionDef]]] = {}
"""File -> its lines, a list that `linecache` replaces once it sees a change, and its functions."""


def _functions_of(file: str) -> dict[tuple[str, int], ast.FunctionDef]:
    """Those of a file by name and first line, which is that of the first decorator."""
    lines = linecache.getlines(file)
    if file not in _parsed or _parsed[file][0] is not lines:
        _parsed[file] = lines, _functions_in("".join(lines))
    return _parsed[file][1]


def _functions_in(text: str) -> dict[tuple[str, int], ast.FunctionDef]:
    functions, waiting = {}, list[ast.AST](ast.parse(text).body)
    for node in waiting:
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            functions[node.name, first] = node
        if not isinstance(node, ast.expr):  # which holds no statements
            waiting.extend(ast.iter_child_nodes(node))
    return functions


def tree_of(function: Callable[..., Any]) -> ast.FunctionDef:
    """A function's definition. Raises `UncompilableError` where its source cannot be read."""
    code = function.__code__
    tree = _functions_of(code.co_filename).get((code.co_name, code.co_firstlineno))
    if tree is None:
        raise UncompilableError(f"no source of {code.co_name} in {code.co_filename}:{code.co_firstlineno}")
    return tree


@functools.cache
def assigned_in(node: ast.AST) -> frozenset[str]:
    """The names that are assigned somewhere within."""
    names: set[str] = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            names |= assigned_in(child)
        else:
            names.update(
                name.id
                for name in ast.walk(child)
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
            )
    return frozenset(names)


def surroundings(function: Callable[..., Any]) -> Callable[[str], Any]:
    """What names mean that a function does not assign; raises `KeyError` for unknown ones."""
    closure = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    module = function.__globals__

    def look_up(name: str) -> Any:
        if name in closure:
            try:
                return closure[name].cell_contents
            except ValueError:
                raise KeyError(name) from None
        return module[name] if name in module else vars(builtins)[name]

    return look_up
