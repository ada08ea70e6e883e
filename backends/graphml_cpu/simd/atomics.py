"""Atomic int64 and int32 operations at addresses, and the processor's pause.

Knows nothing of what they synchronise. Addresses must be aligned to the size of the integer.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir

from graphml_cpu import target
from graphml_cpu.frontend import types
from graphml_cpu.frontend.operation import operation
from graphml_cpu.simd import build

_I64 = ir.IntType(64)


@operation
def atomic_load(address: Any) -> Any:
    """The int64 at an address, with acquire ordering: what its writer stored before is seen after."""

    def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
        return builder.load_atomic(build.pointer(builder, args[0], _I64), ordering="acquire", align=8)

    return types.int64(types.int64), emit


@operation
def atomic_store(address: Any, value: Any) -> Any:
    """Store an int64 with release ordering."""

    def emit(builder: ir.IRBuilder, *args: Any) -> None:
        builder.store_atomic(args[1], build.pointer(builder, args[0], _I64), ordering="release", align=8)

    return types.none(types.int64, types.int64), emit


@operation
def atomic_add(address: Any, value: Any) -> Any:
    """Add to the int64 at an address, sequentially consistent; returns what was there before."""

    def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
        where = build.pointer(builder, args[0], _I64)
        return builder.atomic_rmw("add", where, args[1], "seq_cst")

    return types.int64(types.int64, types.int64), emit


@operation
def compare_swap(address: Any, expected: Any, value: Any) -> Any:
    """Put `value` where `expected` stands, sequentially consistent; whether it stood there."""

    def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
        where = build.pointer(builder, args[0], _I64)
        pair = builder.cmpxchg(where, args[1], args[2], "seq_cst", "seq_cst")
        return builder.extract_value(pair, 1)

    return types.boolean(types.int64, types.int64, types.int64), emit


@operation
def pause() -> Any:
    """Tell the processor that this is a spin loop."""

    def emit(builder: ir.IRBuilder, *_args: Any) -> None:
        architecture = target.current().architecture
        if architecture == "x86":
            build.call(builder, "llvm.x86.sse2.pause", ir.VoidType(), [])
        elif architecture == "arm":
            # Most cores take a yield for nothing at all; this barrier costs them what a pause costs an x86.
            build.call(builder, "llvm.aarch64.isb", ir.VoidType(), [build.I32(15)])

    return types.none(), emit


@operation
def cycle_counter() -> Any:
    """The processor's counter of cycles or fixed ticks; 0 where it cannot be read."""
    return types.int64(), lambda builder: build.call(builder, "llvm.readcyclecounter", _I64, [])


@operation
def call_address(function: Any, arguments: Any) -> Any:
    """`call_address(f, (a, b, c))`: call the C function at address f with int64 arguments; no result."""
    if not isinstance(arguments, types.BaseTuple):
        return None
    count = len(arguments)

    def emit(builder: ir.IRBuilder, *args: Any) -> None:
        function_type = ir.FunctionType(ir.VoidType(), [_I64] * count)
        values = [builder.extract_value(args[1], index) for index in range(count)]
        builder.call(builder.inttoptr(args[0], function_type.as_pointer()), values)

    return types.none(types.int64, types.UniTuple(types.int64, count)), emit
