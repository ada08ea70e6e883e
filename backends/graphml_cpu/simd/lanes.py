"""Operations across lanes: shuffles, concatenation, single lanes, reductions, table lookup, dot products.

Knows which instructions of x86 and ARM the process's level has; every operation also has a form for any
processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import llvmlite.ir as ir

from graphml_cpu.frontend import types
from graphml_cpu.frontend.operation import operation
from graphml_cpu.simd import build
from graphml_cpu.simd.bytes import emit_dot4, emit_dot4_signed, emit_lookup16
from graphml_cpu.simd.types import VectorType


def shuffle_by(indices: Sequence[int]) -> Any:
    """An operation `f(v)`: the lanes of v in the order of `indices` (any number of them).

    Made outside the kernel, in its factory: the indices are part of the instruction.
    """
    order = tuple(indices)

    @operation
    def permute(value: Any) -> Any:
        def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
            return build.shuffle(builder, args[0], None, order)

        return VectorType(value.element, len(order))(value), emit

    return permute


def shuffle_pair_by(indices: Sequence[int]) -> Any:
    """An operation `f(a, b)`: lanes of a (0 to n-1) and of b (n to 2n-1) in the order of `indices`."""
    order = tuple(indices)

    @operation
    def permute_pair(a: Any, b: Any) -> Any:
        def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
            return build.shuffle(builder, args[0], args[1], order)

        return VectorType(a.element, len(order))(a, a), emit

    return permute_pair


def rotate_right_by(counts: Sequence[int]) -> Any:
    """An operation `f(v)`: each lane of an integer vector rotated right by its own number of bits.

    Made outside the kernel, in its factory. There are instructions for lanes of 32 and 64 bits.
    """
    by = tuple(counts)

    @operation
    def rotate(value: Any) -> Any:
        if not isinstance(value, VectorType) or value.is_float or value.lanes != len(by):
            return None

        def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
            amounts = ir.Constant(value.llvm_type, [ir.Constant(value.llvm_element, count) for count in by])
            return build.overloaded(builder, "fshr", [args[0], args[0], amounts])

        return value(value), emit

    return rotate


@operation
def rotate_right(value: Any, counts: Any) -> Any:
    """`rotate_right(v, counts)`: as `rotate_right_by`, by the lanes of an integer vector."""
    if not isinstance(value, VectorType) or value.is_float or counts != value:
        return None

    def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
        return build.overloaded(builder, "fshr", [args[0], args[0], args[1]])

    return value(value, counts), emit


def constant_lanes(vector: VectorType, values: Sequence[int]) -> Any:
    """An operation `f()`: the integer vector of these values, a lane each; part of the kernel's code."""
    lanes = tuple(values)

    @operation
    def constant() -> Any:
        def emit(_builder: ir.IRBuilder, *_args: Any) -> ir.Value:
            return ir.Constant(vector.llvm_type, [ir.Constant(vector.llvm_element, value) for value in lanes])

        return vector(), emit

    return constant


@operation
def concatenate(a: Any, b: Any) -> Any:
    """The lanes of a, then those of b (same type)."""
    if not isinstance(a, VectorType) or a != b:
        return None
    return VectorType(a.element, a.lanes * 2)(a, b), lambda builder, *args: build.concatenate(builder, *args)


def _half(name: str, upper: bool) -> Any:
    def half(value: Any) -> Any:
        if not isinstance(value, VectorType):
            return None
        count = value.lanes // 2
        start = count if upper else 0

        def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
            return build.shuffle(builder, args[0], None, range(start, start + count))

        return VectorType(value.element, count)(value), emit

    half.__doc__ = f"The {'upper' if upper else 'lower'} half of the lanes."
    half.__name__ = name
    return operation(half)


low_half = _half("low_half", False)
high_half = _half("high_half", True)


@operation
def extract(value: Any, lane: Any) -> Any:
    """`extract(v, i)`: one lane as a scalar."""
    if not isinstance(value, VectorType) or value.element == "f16":
        return None
    return value.scalar(value, types.int64), lambda builder, *args: builder.extract_element(args[0], args[1])


@operation
def insert(value: Any, lane: Any, element: Any) -> Any:
    """`insert(v, i, x)`: v with the scalar x in lane i."""
    if not isinstance(value, VectorType) or value.element == "f16":
        return None

    def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
        return builder.insert_element(args[0], args[2], args[1])

    return value(value, types.int64, value.scalar), emit


def _reduction(name: str, doc: str) -> Any:
    def reduce(value: Any) -> Any:
        if not isinstance(value, VectorType):
            return None

        def combine(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
            if name == "sum":
                return (builder.fadd if value.is_float else builder.add)(a, b)
            symbol = ">" if name == "max" else "<"
            if value.is_float:
                chosen = builder.fcmp_ordered(symbol, a, b)
            else:
                chosen = (builder.icmp_signed if value.is_signed else builder.icmp_unsigned)(symbol, a, b)
            return builder.select(chosen, a, b)

        def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
            (rest,) = args
            while rest.type.count > 1:
                count = rest.type.count // 2
                low = build.shuffle(builder, rest, None, range(count))
                high = build.shuffle(builder, rest, None, range(count, count * 2))
                rest = combine(builder, low, high)
            return builder.extract_element(rest, build.I32(0))

        return value.scalar(value), emit

    reduce.__doc__ = doc
    reduce.__name__ = f"{name}_lanes"
    return operation(reduce)


# Folded in halves, so the order of the additions depends on the number of lanes alone.
sum_lanes = _reduction("sum", "The sum of all lanes, as a scalar.")
max_lanes = _reduction("max", "The largest lane, as a scalar.")
min_lanes = _reduction("min", "The smallest lane, as a scalar.")


@operation
def any_lane(mask: Any) -> Any:
    """Whether any lane of a mask is set."""

    def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
        flag = ir.IntType(1)
        return build.call(builder, f"llvm.vector.reduce.or.v{mask.lanes}i1", flag, args)

    return types.boolean(mask), emit


@operation
def lookup16(table: Any, index: Any) -> Any:
    """`lookup16(table, index)`: table[index] per lane; a table of 16 bytes, indices (u8) from 0 to 15."""
    if not (isinstance(table, VectorType) and isinstance(index, VectorType)):
        return None
    if table.lanes != 16 or table.bits != 8 or index.bits != 8:
        return None
    result = VectorType(table.element, index.lanes)
    return result(table, index), emit_lookup16


@operation
def dot4(total: Any, unsigned: Any, signed: Any) -> Any:
    """`dot4(total, u, s)`: each int32 lane of `total` plus the dot product of four neighbours of u8 and i8.

    Exact at every level for u of 0 to 127 and any s; with VNNI or I8MM for every u.
    """
    if not (isinstance(total, VectorType) and total.element == "i32"):
        return None
    bytes_of = VectorType("u8", total.lanes * 4), VectorType("i8", total.lanes * 4)
    if (unsigned, signed) != bytes_of:
        return None
    return total(total, unsigned, signed), emit_dot4


@operation
def dot4_signed(total: Any, a: Any, b: Any) -> Any:
    """`dot4_signed(total, a, b)`: as `dot4` for two i8 vectors; exact for every a, and b of -127 to 127."""
    if not (isinstance(total, VectorType) and total.element == "i32"):
        return None
    kind = VectorType("i8", total.lanes * 4)
    if (a, b) != (kind, kind):
        return None
    return total(total, a, b), emit_dot4_signed
