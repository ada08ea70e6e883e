"""Operations: what kernels call by name and what is made of LLVM instructions by a function in Python.

Knows types and LLVM's builder; nothing of syntax.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.ir as ir

from graphml_cpu.frontend.types import LlvmType, Signature
from graphml_cpu.only_once import only_once

Generator = Callable[..., Any]


class TupleBuilder(ir.IRBuilder):  # type: ignore[misc]  # llvmlite is untyped
    """LLVM's builder, for which a tuple is Python's tuple of LLVM values."""

    def extract_value(self, aggregate: Any, index: Any, name: str = "") -> Any:
        """An item of a tuple, or of LLVM's own aggregates."""
        return (
            aggregate[index]
            if isinstance(aggregate, tuple)
            else super().extract_value(aggregate, index, name)
        )


def is_own(function: Callable[..., Any]) -> bool:
    """Whether a function is of this package; modules of others may be reloaded, and mean another thing."""
    return function.__module__.partition(".")[0] == __name__.partition(".")[0]


class InlineFunction:
    """A Python function that kernels call, see `graphml_cpu.frontend.inline`.

    emitted: what it became in kernels of this package, by the types of its arguments.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.name, self.__doc__ = function, function.__name__, function.__doc__
        self.__wrapped__ = function
        self.emitted: dict[tuple[Any, ...], Any] = {}

    def __call__(self, *arguments: Any) -> Any:
        """TypeError: kernels alone call it."""
        raise TypeError(f"{self.name} is a function of kernels")


class Operation:
    """An operation by its typing function, which returns (signature, code generator), or None."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name, self._function, self.__doc__ = function.__name__, function, function.__doc__
        self.__wrapped__ = function
        self._found: dict[tuple[LlvmType, ...], tuple[Signature, Generator] | None] = {}

    def of(self, kinds: tuple[LlvmType, ...]) -> tuple[Signature, Generator] | None:
        """Signature and code generator for these types of arguments; None for types that it does not take."""
        if kinds not in self._found or not is_own(self._function):
            self._found[kinds] = self._function(*kinds)
        return self._found[kinds]

    def __call__(self, *arguments: Any) -> Any:
        """TypeError: kernels alone call it."""
        raise TypeError(f"{self.name} is an operation of kernels")


@only_once
def operation(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make `function(*argument_types)` an operation that kernels call by its name.

    It returns None for argument types that it does not take, else (signature, code generator):
    `signature = result_type(*argument_types)` and `emit(builder, *values)`. Tuples are Python's there.
    """
    return Operation(function)
