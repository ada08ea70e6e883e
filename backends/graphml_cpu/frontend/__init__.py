"""Python functions -> LLVM IR: the language that kernels are written in.

A kernel's functions are read as syntax trees and emitted statement by statement, once for each list of
argument types. What the factory knows (numbers, flags, functions, types) is computed meanwhile, and `if`s on
it are decided. No optimiser has touched the text that comes out: the back half (`graphml_cpu.machine_code`)
alone decides which instructions are used.

The language: assignments, tuples, `if`, `while`, `for` over `range`, `break`, `continue`, `return`, Python's
operators on numbers and vectors, `min`, `max`, `abs`, `int`, `float`, calls of `inline` functions and of
operations. No arrays, no strings but known ones, no exceptions, nothing that is allocated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from graphml.errors import BackendError
from graphml_cpu.frontend import types
from graphml_cpu.frontend.functions import Emitted, Helpers, module_text
from graphml_cpu.frontend.operation import InlineFunction, is_own
from graphml_cpu.frontend.values import NOTHING
from graphml_cpu.only_once import check_unchanged, only_once

P = ParamSpec("P")
R = TypeVar("R")


@only_once
def inline(function: Callable[P, R]) -> Callable[P, R]:
    """Make `function` callable from kernels; it is inlined wherever it is called.

    Its argument types are those of each call, so one helper serves scalars and vectors of every width.
    """
    return cast("Callable[P, R]", InlineFunction(function))


def lower(function: Callable[..., None], argument_types: tuple[str, ...]) -> tuple[str, str]:
    """`function`, returning nothing, as (text of an LLVM module, name of the function in it).

    `argument_types` are names of numbers: `int64`, `float32`.
    Raises `BackendError`, with file and line, for what cannot be compiled.
    """
    try:
        check_unchanged()
    except ValueError as error:
        raise BackendError(str(error)) from error
    helpers: Helpers | None = None if is_own(function) else {}
    try:
        emitted = Emitted(function, [getattr(types, name) for name in argument_types], helpers)
    except BackendError as error:
        raise BackendError(f"kernel {function.__qualname__} ({function.__module__}): {error}") from error
    if emitted.result != NOTHING:
        raise BackendError(f"kernel {function.__qualname__} ({function.__module__}) returns something")
    return module_text(emitted), emitted.name


__all__ = ["inline", "lower"]
