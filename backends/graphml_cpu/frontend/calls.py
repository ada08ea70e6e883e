"""Calls in a kernel's function: of operations, of Python's own functions and of types.

Knows values and signatures; nothing of statements, and of `inline` functions only that there are some.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from graphml_cpu.frontend import operators, types
from graphml_cpu.frontend.expressions import FUNCTIONS, Expressions
from graphml_cpu.frontend.operation import InlineFunction, Operation
from graphml_cpu.frontend.types import BaseTuple, Float, Integer, LlvmType, tuple_of
from graphml_cpu.frontend.values import (
    NOTHING,
    Counted,
    Items,
    Known,
    Typed,
    UncompilableError,
    Value,
    as_python,
    described,
    known,
    number,
)

_PLAIN = (int, float, bool, str, type(None))
_CONVERSIONS: dict[Any, LlvmType] = {float: types.float64, int: types.int64, bool: types.boolean}
_FOLDED: tuple[Any, ...] = (min, max, abs, int, float, bool)


class Calls(Expressions):
    """Emits calls at the builder's place."""

    def call_function(
        self, function: InlineFunction, arguments: Sequence[Value], named: dict[str, Value]
    ) -> Value:
        """Call an `inline` function."""
        raise NotImplementedError

    def _call(self, node: ast.Call) -> Value:
        called = self.evaluate(node.func)
        if not isinstance(called, Known):
            raise UncompilableError(f"{described(called)} cannot be called")
        arguments = self.arguments(node.args)
        named = {keyword.arg or "": self.evaluate(keyword.value) for keyword in node.keywords}
        function = called.object
        if isinstance(function, InlineFunction):
            return self.call_function(function, arguments, named)
        if named:
            raise UncompilableError(f"{ast.unparse(node.func)} takes no named arguments")
        if isinstance(function, Operation):
            return self._operate(function, arguments)
        return self._built_in(function, arguments)

    def _operate(self, called: Operation, arguments: Sequence[Value]) -> Value:
        kinds = tuple(argument_type(argument) for argument in arguments)
        try:
            overload = called.of(kinds)
        except (AttributeError, TypeError, ValueError) as error:
            raise UncompilableError(f"{called.name} of {', '.join(map(repr, kinds))}: {error}") from error
        if overload is None or len(overload[0].args) != len(kinds):
            raise UncompilableError(
                f"{called.name} does not take {', '.join(map(repr, kinds)) or 'no arguments'}"
            )
        signature, generate = overload
        pairs = zip(arguments, signature.args, strict=True)
        values = [self.argument(value, kind) for value, kind in pairs]
        return _returned(signature.return_type, generate(self.builder, *values))

    def argument(self, value: Value, kind: Any) -> Any:
        """A value as an argument of a type: an LLVM value, or a tuple of such."""
        if isinstance(kind, BaseTuple) and isinstance(value, Items):
            return tuple(
                self.argument(element, wanted)
                for element, wanted in zip(value.values, kind.kinds, strict=True)
            )
        if isinstance(kind, types.TypeRef):
            return None
        typed = number(value)
        if isinstance(kind, Integer) and isinstance(typed.kind, Float):
            raise UncompilableError(f"{typed.kind!r} for {kind!r}: write int(...)")
        return operators.cast(self.builder, typed.value, typed.kind, kind)

    def _built_in(self, function: Any, arguments: Sequence[Value]) -> Value:
        """Python's own functions, types of numbers, and those of the module `operator`."""
        if function is range and 1 <= len(arguments) <= 3:
            start, stop, step = (
                (Known(0), *arguments, Known(1)) if len(arguments) == 1 else (*arguments, Known(1))[:3]
            )
            return Counted(start, stop, step)
        if function is len and len(arguments) == 1 and isinstance(arguments[0], Items):
            return Known(len(arguments[0].values))
        if function in FUNCTIONS and len(arguments) == 2:
            return self.binary(function, *arguments)
        if all(isinstance(argument, Known) and isinstance(argument.object, _PLAIN) for argument in arguments):
            folded = self._folded(function, [as_python(argument) for argument in arguments])
            if folded is not None:
                return folded
        kind = function if isinstance(function, LlvmType) else _CONVERSIONS.get(function)
        if kind is not None and len(arguments) == 1:
            typed = number(arguments[0])
            return Typed(kind, operators.cast(self.builder, typed.value, typed.kind, kind))
        if function in (min, max) and len(arguments) > 1:
            best, *others = [(argument.kind, argument.value) for argument in map(number, arguments)]
            for other in others:
                best = operators.smaller_or_larger(self.builder, function, best, other)
            return Typed(*best)
        if function is abs and len(arguments) == 1:
            typed = number(arguments[0])
            return Typed(*operators.absolute(self.builder, (typed.kind, typed.value)))
        raise UncompilableError(
            f"{getattr(function, '__name__', function)} is no function that kernels can call"
        )

    @staticmethod
    def _folded(function: Any, arguments: list[Any]) -> Value | None:
        """What one of Python's functions of numbers returns; None for others, and where it fails."""
        if function not in _FOLDED and getattr(function, "__module__", "") != "math":
            return None
        try:
            return known(function(*arguments))
        except (ArithmeticError, ValueError, TypeError) as error:
            raise UncompilableError(f"{function.__name__}{tuple(arguments)}: {error}") from error


def argument_type(value: Value) -> LlvmType:
    """The type of an operation's argument."""
    if isinstance(value, Items):
        return tuple_of(argument_type(element) for element in value.values)
    if isinstance(value, Known) and isinstance(value.object, LlvmType):
        return types.TypeRef(value.object)
    return number(value).kind


def _returned(kind: Any, emitted: Any) -> Value:
    if isinstance(kind, BaseTuple):
        return Items(
            tuple(_returned(element, value) for element, value in zip(kind.kinds, emitted, strict=True))
        )
    return NOTHING if kind is types.none else Typed(kind, emitted)
