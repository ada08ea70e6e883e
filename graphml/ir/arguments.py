"""Argument checks of the builder's methods, by the annotations of their parameters (`argument_kinds.py`).

An error (`GraphError`) names the method, the argument, what was wanted, what came and the caller's line.
Knows nothing of single methods.
"""

from __future__ import annotations

import functools
import inspect
from collections import defaultdict
from collections.abc import Callable
from inspect import Parameter
from typing import Any, Protocol, TypeVar, cast

import numpy as np

from graphml.errors import ArchitectureError, GraphError, GraphmlError, ShapeError
from graphml.ir.argument_kinds import NODE, ArgumentKind, Nodes, kind_of, quick_check
from graphml.ir.node import Node
from graphml.ir.source import called_from
from graphml.ir.suggestion import meant

Function = TypeVar("Function", bound=Callable[..., Any])
Located = TypeVar("Located", bound=GraphmlError)
Test = Callable[[Any, Nodes], bool] | None
"""The test of a value; None: that it is a node of the graph, by far the most common test."""


class Owner(Protocol):
    """The graph that is being built, for which arguments are checked."""

    @property
    def nodes(self) -> Nodes:
        """The nodes so far."""
        ...

    @property
    def scope_name(self) -> str:
        """The prefix of the names of new nodes."""
        ...


class _Parameters:
    """The parameters of a method after its first, the object that it is a method of."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.signature = inspect.signature(function)
        _, *parameters = self.signature.parameters.values()
        self.kinds = {parameter.name: _declared(function, parameter.annotation) for parameter in parameters}
        kinds: defaultdict[object, list[str]] = defaultdict(list)
        for parameter in parameters:
            kinds[parameter.kind].append(parameter.name)
        self.names = [*kinds[Parameter.POSITIONAL_OR_KEYWORD], *kinds[Parameter.KEYWORD_ONLY]]
        self.rest, self.more = kinds[Parameter.VAR_POSITIONAL], kinds[Parameter.VAR_KEYWORD]
        self.in_order = tuple(self._test(name) for name in kinds[Parameter.POSITIONAL_OR_KEYWORD])
        self.by_name = {name: self._test(name) for name in self.names}
        self.rest_test: Test = self._test(self.rest[0]) if self.rest else _never
        self.more_test: Test = self._test(self.more[0]) if self.more else _never
        self.quick = quick_check(parameters, self.kinds)

    def _test(self, name: str) -> Test:
        wanted = self.kinds[name]
        return None if wanted is NODE else wanted.holds

    def fit(self, positional: tuple[Any, ...], named: dict[str, Any], nodes: Nodes) -> bool:
        """Whether every argument passes its test."""
        tests = self.in_order
        if len(positional) > len(tests):
            tests += (self.rest_test,) * (len(positional) - len(tests))
        try:
            for test, value in zip(tests, positional, strict=False):
                if value not in nodes if test is None else not test(value, nodes):
                    return False
            for name, value in named.items():
                test = self.by_name.get(name, self.more_test)
                if value not in nodes if test is None else not test(value, nodes):
                    return False
        except TypeError:  # an unhashable value is no node
            return False
        return True

    def refusal(self, positional: tuple[Any, ...], named: dict[str, Any], nodes: Nodes) -> str:
        """The error text for the first argument that does not pass."""
        names = [*self.names[: len(self.in_order)], *self.rest * len(positional)]
        for name, value in [*zip(names, positional, strict=False), *named.items()]:
            known = name if name in self.kinds else next(iter(self.more), "")
            if not known:
                near = meant(name, self.names)
                has = f"did you mean {near!r}? It has" if near else "it has"
                return f"has no argument {name!r}: {has} {', '.join(self.names)}"
            wanted = self.kinds[known]
            if not wanted.holds(value, nodes):
                stranger = " of another graph" if isinstance(value, Node) and value not in nodes else ""
                got = f"got {_described(value)}{stranger}{_advice(wanted, value)}"
                return f"argument {name!r}: wanted {wanted.words}; {got}"
        return f"takes {len(self.in_order)} arguments ({', '.join(self.names)}); got {len(positional)}"


_known: dict[tuple[str, str], ArgumentKind] = {}


def _declared(function: Callable[..., Any], annotation: str) -> ArgumentKind:
    """The kind of an annotation, which is text until evaluated; cached, since few are used many times."""
    key = function.__module__, annotation
    if key not in _known:
        _known[key] = kind_of(eval(annotation, function.__globals__))
    return _known[key]


def _never(value: Any, nodes: Nodes) -> bool:
    return False


def checked(spoken: str, owner: Callable[[Any], Owner] | None = None) -> Callable[[Function], Function]:
    """Make a function a method that checks its arguments.

    spoken: the name that architectures use for the object of the method; owner: returns the builder behind
    that object, if it is none itself.
    """

    def decorate(function: Function) -> Function:
        called = f"[{spoken}.{function.__name__}]".replace(".__getitem__", "[]")
        known: _Parameters | None = None

        @functools.wraps(function)
        def call(self: Any, *positional: Any, **named: Any) -> Any:
            nonlocal known
            if known is None:  # not before: an annotation may name a class that is defined later in its file
                known = _Parameters(function)
            g: Owner = self if owner is None else owner(self)
            try:
                fits = known.quick(g.nodes, *positional, **named)
            except TypeError:  # an unhashable value, or arguments too many or too few
                fits = False
            if not fits and not known.fit(positional, named, g.nodes):
                raise located(GraphError(f"{called} {known.refusal(positional, named, g.nodes)}"), g)
            try:
                return function(self, *positional, **named)
            except (GraphError, ArchitectureError) as error:
                raise located(error, g) from None
            except TypeError as error:
                raise _misfit(error, called, known, positional, named, g) from None
            except (IndexError, ValueError, ZeroDivisionError):  # dimensions that do not exist
                kinds = [
                    repr(argument.type)
                    for argument in (*positional, *named.values())
                    if isinstance(argument, Node)
                ]
                text = f"{called} takes operands of another number or rank; got {', '.join(kinds)}"
                raise located(ShapeError(text), g) from None

        return cast(Function, call)

    return decorate


method = checked("g")
"""Make a function whose first argument is a builder a method of it that checks its arguments."""


def located(error: Located, g: Owner) -> Located:
    """The error with the scope and the line of the caller's code, if it does not name them already."""
    if error.located:
        return error
    scope = f" in {g.scope_name}" if g.scope_name else ""
    located_error = type(error)(f"{error}{scope}{called_from()}")
    located_error.located = True
    return located_error


def _misfit(
    error: TypeError,
    called: str,
    known: _Parameters,
    positional: tuple[Any, ...],
    named: dict[str, Any],
    g: Owner,
) -> Exception:
    """The error for a missing or repeated argument; for any other `TypeError` the error itself."""
    try:
        known.signature.bind(g, *positional, **named)
    except TypeError as reason:
        return located(GraphError(f"{called} {reason}; it takes {', '.join(known.kinds)}"), g)
    return error


def _described(value: object) -> str:
    if isinstance(value, Node):
        return f"the node %{value.name}: {value.type}"
    if isinstance(value, np.ndarray):
        return f"a NumPy array {value.dtype}{list(value.shape)}"
    if isinstance(value, tuple | list):
        kinds = ", ".join(dict.fromkeys(type(element).__name__ for element in value))
        return f"a {type(value).__name__} of {len(value)} ({kinds})"
    if value is None or isinstance(value, str | int | float | np.generic):
        return repr(value)[:100]
    if isinstance(value, type):
        return f"the type {value.__name__}"
    if inspect.isroutine(value):
        return f"the function {value.__name__}, which is not called"
    return f"a {type(value).__name__}"


def _advice(wanted: ArgumentKind, value: object) -> str:
    if isinstance(value, np.generic) and wanted is not NODE:
        return " (int() and float() make plain numbers)"
    if isinstance(value, np.ndarray):
        return (
            " (tensors of the file come from weights, what is given at each step from g.input, numbers of "
            "the graph itself from g.constant)"
        )
    if wanted is NODE and value is None:
        return " (weights.get gives None for a tensor that the file lacks)"
    if wanted is NODE and isinstance(value, int | float):
        return " (for a number g.scale(x, factor, offset), or g.constant)"
    return ""
