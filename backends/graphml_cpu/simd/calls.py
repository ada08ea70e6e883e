"""One kernel calls another: by its address, with a parameter block on the caller's stack.

Knows the form of a kernel's entry (`graphml_cpu.compiler`); not what is called.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir

from graphml_cpu.frontend import types
from graphml_cpu.frontend.operation import operation
from graphml_cpu.simd import build

_ENTRY = ir.FunctionType(ir.VoidType(), (build.I64, build.I64, build.I64))


@operation
def call_kernel(address: Any, slots: Any) -> Any:
    """`call_kernel(address, (a, b, ...))`: the kernel at an address, by one thread; int64 for its slots."""
    if not isinstance(slots, types.UniTuple) or slots.dtype != types.int64:
        return None

    def emit(builder: ir.IRBuilder, *args: Any) -> None:
        block = build.stack_slot(builder, build.I64, len(slots))
        for slot in range(len(slots)):
            builder.store(builder.extract_value(args[1], slot), builder.gep(block, [build.I64(slot)]))
        entry = builder.inttoptr(args[0], _ENTRY.as_pointer())
        builder.call(entry, [builder.ptrtoint(block, build.I64), build.I64(0), build.I64(1)])

    return types.none(types.int64, slots), emit
