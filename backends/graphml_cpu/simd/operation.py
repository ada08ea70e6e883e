"""How an operation of kernels is declared: a typing function that returns a signature and its code generator.

Knows numba's extension interface alone, and that equal ones are one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from numba.extending import intrinsic

from graphml_cpu.only_once import only_once


@only_once
def operation(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make `function(typingctx, *argument_types)` an operation that kernels call by its name.

    It returns None for argument types that it does not take, else (signature, code generator).
    """
    return cast("Callable[..., Any]", intrinsic(function))
