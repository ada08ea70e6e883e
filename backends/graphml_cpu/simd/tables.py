"""Constant tables inside compiled code: codebooks and curves that a kernel looks up by address.

Knows bytes alone. The table is part of the object, so it may be kept on disk: no address of this process is
in it.
"""

from __future__ import annotations

import hashlib
from typing import Any

import llvmlite.ir as ir
from numba import types

from graphml_cpu.simd.operation import operation

_BYTE, _ADDRESS = ir.IntType(8), ir.IntType(64)


def constant_table(content: bytes) -> Any:
    """An operation `f()`: the address (aligned to 64) of a read-only copy of `content` in the kernel's code.

    Made outside the kernel, in its factory, as the bytes are part of the code.
    """
    kind = ir.ArrayType(_BYTE, len(content))
    name = f"table.{hashlib.sha256(content).hexdigest()[:16]}"

    @operation
    def table(typingctx: Any) -> Any:
        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            variable = builder.module.globals.get(name)
            if variable is None:
                variable = ir.GlobalVariable(builder.module, kind, name)
                variable.linkage = "private"
                variable.global_constant = True
                variable.unnamed_addr = True
                variable.align = 64
                variable.initializer = ir.Constant(kind, bytearray(content))
            return builder.ptrtoint(variable, _ADDRESS)

        return types.int64(), codegen

    return table
