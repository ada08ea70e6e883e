"""Loads and stores at addresses: vectors, partial vectors, scalars, prefetch, atomics.

An address is an int64. Nothing is assumed about alignment, except that atomics are aligned to their size.
The compiler does not know which addresses overlap: a load stays behind every earlier store, so load first.
Integers narrower than 64 bits come back as int64, halves and bfloats as float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.ir as ir

from graphml_cpu import target
from graphml_cpu.frontend import types
from graphml_cpu.frontend.operation import operation
from graphml_cpu.simd import build
from graphml_cpu.simd.types import VectorType


@operation
def load(vector: Any, address: Any) -> Any:
    """`load(F32, address)`: one vector of the given type."""
    result = vector.instance_type
    return result(vector, types.int64), lambda builder, *args: build.load(builder, args[1], result.llvm_type)


@operation
def load_whole(vector: Any, address: Any, count: Any) -> Any:
    """`load_whole(F32, address, count)`: `load` with the arguments of `load_partial`; count is unused."""
    result = vector.instance_type

    def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
        return build.load(builder, args[1], result.llvm_type)

    return result(vector, types.int64, types.int64), emit


@operation
def store(address: Any, value: Any) -> Any:
    """`store(address, vector)`."""
    if not isinstance(value, VectorType):
        return None
    return types.none(types.int64, value), lambda builder, *args: build.store(builder, args[1], args[0])


def _first_lanes(builder: ir.IRBuilder, count: ir.Value, lanes: int, bits: int) -> ir.Value:
    """Mask whose lanes below `count` (not negative) are set."""
    # Compared in integers as narrow as the elements (lanes <= 64 fit in 8 bits): one comparison, one mask.
    narrow = ir.IntType(bits)
    full = ir.IntType(64)(lanes)
    bounded = builder.select(builder.icmp_signed("<", count, full), count, full)
    kind = ir.VectorType(narrow, lanes)
    lane = builder.insert_element(
        ir.Constant(kind, ir.Undefined), builder.trunc(bounded, narrow), build.I32(0)
    )
    return builder.icmp_signed(
        "<", ir.Constant(kind, list(range(lanes))), build.shuffle(builder, lane, None, [0] * lanes)
    )


@operation
def load_partial(vector: Any, address: Any, count: Any) -> Any:
    """`load_partial(F32, address, count)`: the first `count` lanes, zero in the others.

    Memory past them is not read; `count` may be 0 and may exceed the lanes.
    """
    result = vector.instance_type

    def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
        llvm_type = result.llvm_type
        source = build.pointer(builder, args[1], llvm_type)
        mask = _first_lanes(builder, args[2], result.lanes, result.bits)
        name = f"llvm.masked.load.{build.suffix(llvm_type)}.p0"
        zero = build.constant(llvm_type, 0)
        return build.call(builder, name, llvm_type, [source, build.I32(1), mask, zero])

    return result(vector, types.int64, types.int64), emit


@operation
def store_partial(address: Any, value: Any, count: Any) -> Any:
    """`store_partial(address, vector, count)`: the first `count` lanes; memory past them is not touched."""
    if not isinstance(value, VectorType):
        return None

    def emit(builder: ir.IRBuilder, *args: Any) -> None:
        llvm_type = value.llvm_type
        destination = build.pointer(builder, args[0], llvm_type)
        mask = _first_lanes(builder, args[2], value.lanes, value.bits)
        name = f"llvm.masked.store.{build.suffix(llvm_type)}.p0"
        build.call(builder, name, ir.VoidType(), [args[1], destination, build.I32(1), mask])

    return types.none(types.int64, value, types.int64), emit


def _integer_load(bits: int, signed: bool, doc: str) -> Callable[[int], int]:
    def scalar_load(address: Any) -> Any:
        def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
            value = build.load(builder, args[0], ir.IntType(bits))
            return (builder.sext if signed else builder.zext)(value, ir.IntType(64)) if bits < 64 else value

        return types.int64(types.int64), emit

    scalar_load.__doc__ = doc
    return operation(scalar_load)


load_i8 = _integer_load(8, True, "The int8 at an address, as int64.")
load_u8 = _integer_load(8, False, "The uint8 at an address, as int64.")
load_i16 = _integer_load(16, True, "The int16 at an address, as int64.")
load_u16 = _integer_load(16, False, "The uint16 at an address, as int64.")
load_i32 = _integer_load(32, True, "The int32 at an address, as int64.")
load_u32 = _integer_load(32, False, "The uint32 at an address, as int64.")
load_i64 = _integer_load(64, True, "The int64 at an address.")


def _integer_store(bits: int, doc: str) -> Callable[[int, int], None]:
    def scalar_store(address: Any, value: Any) -> Any:
        def emit(builder: ir.IRBuilder, *args: Any) -> None:
            narrow = builder.trunc(args[1], ir.IntType(bits)) if bits < 64 else args[1]
            build.store(builder, narrow, args[0])

        return types.none(types.int64, types.int64), emit

    scalar_store.__doc__ = doc
    return operation(scalar_store)


store_i8 = _integer_store(8, "Store the low 8 bits of an integer.")
store_i16 = _integer_store(16, "Store the low 16 bits of an integer.")
store_i32 = _integer_store(32, "Store the low 32 bits of an integer.")
store_i64 = _integer_store(64, "Store an int64.")


@operation
def load_f32(address: Any) -> Any:
    """The float32 at an address."""
    return types.float32(types.int64), lambda builder, *args: build.load(builder, args[0], ir.FloatType())


@operation
def store_f32(address: Any, value: Any) -> Any:
    """Store a number as float32."""

    def emit(builder: ir.IRBuilder, *args: Any) -> None:
        build.store(builder, args[1], args[0])

    return types.none(types.int64, types.float32), emit


@operation
def load_f16(address: Any) -> Any:
    """The IEEE half at an address, as float32."""

    def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
        if target.current().has_f16c:
            half = build.load(builder, args[0], ir.HalfType())
            return builder.fpext(half, ir.FloatType())
        bits = build.load(builder, args[0], ir.IntType(16))
        return build.half_to_single(builder, builder.zext(bits, build.I32))

    return types.float32(types.int64), emit


@operation
def store_f16(address: Any, value: Any) -> Any:
    """Store a number as an IEEE half, rounded to nearest even."""

    def emit(builder: ir.IRBuilder, *args: Any) -> None:
        if target.current().has_f16c:
            half = builder.fptrunc(args[1], ir.HalfType())
        else:
            half = builder.trunc(build.single_to_half(builder, args[1]), ir.IntType(16))
        build.store(builder, half, args[0])

    return types.none(types.int64, types.float32), emit


@operation
def gather_f16(address: Any, offsets: Any) -> Any:
    """`gather_f16(address, (a, b, ...))`: a float32 vector of the IEEE halves at address + each offset."""
    if not isinstance(offsets, types.UniTuple):
        return None
    result = VectorType("f32", len(offsets))

    def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
        narrow = ir.VectorType(ir.IntType(16), result.lanes)
        bits = ir.Constant(narrow, ir.Undefined)
        for lane in range(result.lanes):
            at = builder.add(args[0], builder.extract_value(args[1], lane))
            half = build.load(builder, at, ir.IntType(16))
            bits = builder.insert_element(bits, half, build.I32(lane))
        if target.current().has_f16c:
            return builder.fpext(
                builder.bitcast(bits, ir.VectorType(ir.HalfType(), result.lanes)), result.llvm_type
            )
        return build.half_to_single(builder, builder.zext(bits, result.like("u32").llvm_type))

    return result(types.int64, types.UniTuple(types.int64, len(offsets))), emit


@operation
def gather(vector: Any, address: Any, offsets: Any) -> Any:
    """`gather(U64x8, address, (a, b, ...))`: the elements at address + each offset, one a lane."""
    result = vector.instance_type
    if not isinstance(offsets, types.UniTuple) or len(offsets) != result.lanes:
        return None

    def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
        gathered = ir.Constant(result.llvm_type, ir.Undefined)
        for lane in range(result.lanes):
            at = builder.add(args[1], builder.extract_value(args[2], lane))
            element = build.load(builder, at, result.llvm_element)
            gathered = builder.insert_element(gathered, element, build.I32(lane))
        return gathered

    return result(vector, types.int64, offsets), emit


@operation
def load_bf16(address: Any) -> Any:
    """The bfloat16 at an address, as float32."""

    def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
        bits = build.load(builder, args[0], ir.IntType(16))
        return builder.bitcast(builder.shl(builder.zext(bits, build.I32), build.I32(16)), ir.FloatType())

    return types.float32(types.int64), emit


def _prefetch(locality: int, doc: str, write: int = 0) -> Callable[[int], None]:
    def prefetch_intrinsic(address: Any) -> Any:
        def emit(builder: ir.IRBuilder, *args: Any) -> None:
            where = build.pointer(builder, args[0], ir.IntType(8))
            build.prefetch(builder, where, locality, write)

        return types.none(types.int64), emit

    prefetch_intrinsic.__doc__ = doc
    return operation(prefetch_intrinsic)


prefetch = _prefetch(3, "Fetch the cache line of an address for reading, into every level of cache.")
prefetch_once = _prefetch(0, "Fetch the cache line of an address that will be read once.")
prefetch_near = _prefetch(
    2, "Fetch the cache line of an address for reading, into the second level of cache."
)
prefetch_write = _prefetch(3, "Fetch the cache line of an address for writing.", write=1)
