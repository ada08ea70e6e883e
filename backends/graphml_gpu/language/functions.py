"""`@function`: a Python function that is written into the kernels that call it. Knows no targets."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from graphml_gpu.language.source import FunctionSource, read

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


class Function:
    """A function of the language; equal to itself alone, so that it can be a constant of a kernel."""

    def __init__(self, python: Callable[..., Any]) -> None:
        self.python = python
        self.name = python.__name__
        self.__doc__ = python.__doc__

    @cached_property
    def source(self) -> FunctionSource:
        """Its syntax tree, read when first called."""
        return read(self.python)

    @cached_property
    def sites(self) -> Counter[str]:
        """How often each name is given a value in it; see `sites`."""
        return sites(self.source)

    @cached_property
    def positional(self) -> tuple[str, ...]:
        """Parameters that an argument without a name may be for."""
        return tuple(p.name for p in self.source.parameters if not p.keyword_only)

    @cached_property
    def constants(self) -> frozenset[str]:
        """Parameters whose values must be known when compiling."""
        kinds = (int, bool, str, float)
        parameters = self.source.parameters
        return frozenset(p.name for p in parameters if p.keyword_only or p.annotation in kinds)

    @cached_property
    def stand_once(self) -> frozenset[str]:
        """Parameters that stand once in a function that is one expression."""
        if len(self.source.body) != 1 or not isinstance(self.source.body[0], ast.Return):
            return frozenset()
        counts = Counter(node.id for node in ast.walk(self.source.body[0]) if isinstance(node, ast.Name))
        return frozenset(name for name, times in counts.items() if times == 1)

    def __repr__(self) -> str:
        return self.name

    def __call__(self, *arguments: object, **keywords: object) -> Any:
        """Refuse: a function of the language is called by kernels."""
        raise TypeError(f"{self.name}() is a function of the kernel language, for use in a kernel only")


if TYPE_CHECKING:

    def function(python: AnyFunction) -> AnyFunction:
        """Make a function of the language, for kernels to call. A type checker sees the function itself."""

else:

    def function(python: Callable[..., Any]) -> Function:
        """Make a function of the language, for kernels to call."""
        return Function(python)


def sites(source: FunctionSource) -> Counter[str]:
    """How often each name is given a value in the function's text; a change in place counts as two."""
    counts: Counter[str] = Counter(parameter.name for parameter in source.parameters)
    for node in ast.walk(source.tree):
        match node:
            case ast.Assign():
                for target in node.targets:
                    _count(counts, target, 1)
            case ast.AnnAssign():
                _count(counts, node.target, 1)
            case ast.AugAssign():
                _count(counts, node.target, 2)
            case ast.For():
                _count(counts, node.target, 0)
    return counts


def _count(sites: Counter[str], target: ast.expr, times: int) -> None:
    match target:
        case ast.Name():
            sites[target.id] += times
        case ast.Tuple() | ast.List():
            for item in target.elts:
                _count(sites, item, times)
        case ast.Attribute():
            _count(sites, target.value, 2)
