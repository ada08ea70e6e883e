"""`helper`: marks a function that kernels call, so that LLVM finds the vectors in its loops.

The arrays given to a helper must not overlap, unless it only reads them. Short loops over constants are
unrolled and their statements joined to vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core.compiler import Compiler

Array = Any
Number = Any
F32, F64, I32, I64, U32 = np.float32, np.float64, np.int32, np.int64, np.uint32
Function = TypeVar("Function", bound=Callable[..., Any])


class _Separate(Compiler):  # type: ignore[misc]
    """numba's compiler for functions whose arrays do not overlap."""

    def __init__(  # the signature is numba's
        self,
        typingctx: Any,
        targetctx: Any,
        library: Any,
        args: Any,
        return_type: Any,
        flags: Any,
        locals: Any,
    ) -> None:
        flags.noalias = True
        super().__init__(typingctx, targetctx, library, args, return_type, flags, locals)


def helper(function: Function) -> Function:
    """A helper whose float sums are in the order written."""
    return _compiled(function, fastmath=False)  # else numba inherits it from the first caller


def sums_helper(function: Function) -> Function:
    """A helper whose float sums may be in any order, the same one at each call; NaN and infinity pass."""
    return _compiled(function, fastmath={"reassoc", "contract", "nsz"})


def _compiled(function: Function, **options: Any) -> Function:
    options |= {"error_model": "numpy", "nogil": True, "forceinline": True, "pipeline_class": _Separate}
    compiled: Function = numba.njit(**options)(function)
    return compiled
