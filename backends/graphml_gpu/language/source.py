"""A Python function as text: its syntax tree, its names and its parameters. Knows no types."""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from graphml.errors import BackendError


@dataclass(frozen=True)
class Parameter:
    """One parameter. annotation: what it evaluates to (None: it has none, or not at run time)."""

    name: str
    annotation: Any
    keyword_only: bool
    has_default: bool
    default: Any


@dataclass(frozen=True)
class FunctionSource:
    """A function's syntax tree; line 1 of the tree is `first_line` of `file`.

    names: the values of the function's globals, closure and of Python's builtins.
    """

    name: str
    file: str
    first_line: int
    tree: ast.FunctionDef
    parameters: tuple[Parameter, ...]
    returns: Any
    names: Callable[[str], Any]

    @cached_property
    def body(self) -> list[ast.stmt]:
        """The statements without the docstring."""
        return self.tree.body[1:] if ast.get_docstring(self.tree) is not None else self.tree.body

    def where(self, node: ast.AST) -> str:
        """`file:line` of a part of the tree."""
        return f"{Path(self.file).name}:{self.first_line + getattr(node, 'lineno', 1) - 1}"


class UnknownNameError(Exception):
    """A name that stands for nothing."""


def read(python: Callable[..., Any]) -> FunctionSource:
    """The source of a function. Raises `BackendError` where Python does not know its text."""
    try:
        lines, first_line = inspect.getsourcelines(python)
    except (OSError, TypeError) as error:
        raise BackendError(f"kernel {python.__name__}: its source text cannot be read: {error}") from None
    module = ast.parse(textwrap.dedent("".join(lines)))
    (tree,) = module.body
    if not isinstance(tree, ast.FunctionDef):
        raise BackendError(f"kernel {python.__name__}: wanted a function that begins with `def`")
    names = _names(python)
    return FunctionSource(
        python.__name__,
        inspect.getsourcefile(python) or "<unknown>",
        first_line,
        tree,
        tuple(_parameters(python, tree, names)),
        _annotation(tree.returns, names),
        names,
    )


def _names(python: Callable[..., Any]) -> Callable[[str], Any]:
    code = python.__code__

    def find(name: str) -> Any:
        if name in code.co_freevars:
            cell = (python.__closure__ or ())[code.co_freevars.index(name)]
            return cell.cell_contents
        if name in python.__globals__:
            return python.__globals__[name]
        if hasattr(builtins, name):
            return getattr(builtins, name)
        raise UnknownNameError(name)

    return find


class _Names(Mapping[str, Any]):
    """A lookup as the mapping that `eval` wants."""

    def __init__(self, find: Callable[[str], Any]) -> None:
        self.find = find

    def __getitem__(self, name: str) -> Any:
        try:
            return self.find(name)
        except UnknownNameError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _annotation(node: ast.expr | None, names: Callable[[str], Any]) -> Any:
    """An annotation's value; None where it has none at run time (a constant's may name what it likes)."""
    if node is None:
        return None
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        node = ast.parse(node.value, mode="eval").body
    try:
        return eval(compile(ast.Expression(node), "<annotation>", "eval"), {}, _Names(names))
    except (NameError, KeyError, TypeError):
        return None


def _parameters(
    python: Callable[..., Any], tree: ast.FunctionDef, names: Callable[[str], Any]
) -> Iterator[Parameter]:
    annotations = {a.arg: a.annotation for a in [*tree.args.args, *tree.args.kwonlyargs]}
    for parameter in inspect.signature(python).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise BackendError(f"kernel {python.__name__}: wanted named arguments, got `*{parameter.name}`")
        yield Parameter(
            parameter.name,
            _annotation(annotations.get(parameter.name), names),
            parameter.kind == parameter.KEYWORD_ONLY,
            parameter.default is not parameter.empty,
            parameter.default,
        )
