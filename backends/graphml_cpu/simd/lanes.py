"""Operations across lanes: shuffles, concatenation, single lanes, reductions, table lookup, dot products.

Knows which x86 instructions the process's level has; every operation also has a form for any processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import llvmlite.ir as ir
from numba import types

from graphml_cpu import target
from graphml_cpu.simd import build
from graphml_cpu.simd.operation import operation
from graphml_cpu.simd.types import VectorType


def shuffle_by(indices: Sequence[int]) -> Any:
    """An operation `f(v)`: the lanes of v in the order of `indices` (any number of them).

    Made outside the kernel, in its factory: the indices are part of the instruction.
    """
    order = tuple(indices)

    @operation
    def permute(typingctx: Any, value: Any) -> Any:
        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            return build.shuffle(builder, args[0], None, order)

        return VectorType(value.element, len(order))(value), codegen

    return permute


def shuffle_pair_by(indices: Sequence[int]) -> Any:
    """An operation `f(a, b)`: lanes of a (0 to n-1) and of b (n to 2n-1) in the order of `indices`."""
    order = tuple(indices)

    @operation
    def permute_pair(typingctx: Any, a: Any, b: Any) -> Any:
        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            return build.shuffle(builder, args[0], args[1], order)

        return VectorType(a.element, len(order))(a, a), codegen

    return permute_pair


@operation
def concatenate(typingctx: Any, a: Any, b: Any) -> Any:
    """The lanes of a, then those of b (same type)."""
    if not isinstance(a, VectorType) or a != b:
        return None

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return build.concatenate(builder, *args)

    return VectorType(a.element, a.lanes * 2)(a, b), codegen


def _half(name: str, upper: bool) -> Any:
    def half(typingctx: Any, value: Any) -> Any:
        if not isinstance(value, VectorType):
            return None
        count = value.lanes // 2
        start = count if upper else 0

        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            return build.shuffle(builder, args[0], None, range(start, start + count))

        return VectorType(value.element, count)(value), codegen

    half.__doc__ = f"The {'upper' if upper else 'lower'} half of the lanes."
    half.__name__ = name
    return operation(half)


low_half = _half("low_half", False)
high_half = _half("high_half", True)


@operation
def extract(typingctx: Any, value: Any, lane: Any) -> Any:
    """`extract(v, i)`: one lane as a scalar."""
    if not isinstance(value, VectorType) or value.element == "f16":
        return None

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.extract_element(args[0], args[1])

    return value.numba_element(value, types.int64), codegen


@operation
def insert(typingctx: Any, value: Any, lane: Any, element: Any) -> Any:
    """`insert(v, i, x)`: v with the scalar x in lane i."""
    if not isinstance(value, VectorType) or value.element == "f16":
        return None

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.insert_element(args[0], args[2], args[1])

    return value(value, types.int64, value.numba_element), codegen


def _reduction(name: str, doc: str) -> Any:
    def reduce(typingctx: Any, value: Any) -> Any:
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

        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            (rest,) = args
            while rest.type.count > 1:
                count = rest.type.count // 2
                low = build.shuffle(builder, rest, None, range(count))
                high = build.shuffle(builder, rest, None, range(count, count * 2))
                rest = combine(builder, low, high)
            return builder.extract_element(rest, build.I32(0))

        return value.numba_element(value), codegen

    reduce.__doc__ = doc
    reduce.__name__ = f"{name}_lanes"
    return operation(reduce)


# Folded in halves, so the order of the additions depends on the number of lanes alone.
sum_lanes = _reduction("sum", "The sum of all lanes, as a scalar.")
max_lanes = _reduction("max", "The largest lane, as a scalar.")
min_lanes = _reduction("min", "The smallest lane, as a scalar.")


@operation
def any_lane(typingctx: Any, mask: Any) -> Any:
    """Whether any lane of a mask is set."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        bits = ir.IntType(mask.lanes)
        return builder.icmp_unsigned("!=", builder.bitcast(args[0], bits), bits(0))

    return types.boolean(mask), codegen


@operation
def lookup16(typingctx: Any, table: Any, index: Any) -> Any:
    """`lookup16(table, index)`: table[index] per lane; a table of 16 bytes, indices (u8) from 0 to 15."""
    if not (isinstance(table, VectorType) and isinstance(index, VectorType)):
        return None
    if table.lanes != 16 or table.bits != 8 or index.bits != 8:
        return None
    result = VectorType(table.element, index.lanes)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        entries, where = args
        name = _byte_shuffle(index.lanes)
        if name:
            repeated = build.shuffle(builder, entries, None, [lane % 16 for lane in range(index.lanes)])
            return build.call(builder, name, result.llvm_type, [repeated, where])
        found = build.constant(result.llvm_type, 0)
        for entry in range(16):
            chosen = builder.icmp_unsigned("==", where, build.constant(where.type, entry))
            value = build.shuffle(builder, entries, None, [entry] * index.lanes)
            found = builder.select(chosen, value, found)
        return found

    return result(table, index), codegen


def _byte_shuffle(lanes: int) -> str | None:
    names = {"avx512": {64, 32, 16}, "avx2-vnni": {32, 16}, "avx2": {32, 16}}.get(
        target.current().name, set()
    )
    if lanes not in names:
        return None
    return {64: "llvm.x86.avx512.pshuf.b.512", 32: "llvm.x86.avx2.pshuf.b", 16: "llvm.x86.ssse3.pshuf.b.128"}[
        lanes
    ]


@operation
def dot4(typingctx: Any, total: Any, unsigned: Any, signed: Any) -> Any:
    """`dot4(total, u, s)`: each int32 lane of `total` plus the dot product of four neighbours of u8 and i8.

    Exact at every level for u of 0 to 128 and any s; with VNNI for every u. Without, pairs are summed in
    16 bits, where 2 * 128 * 127 and 2 * 128 * -128 still fit.
    """
    if not (isinstance(total, VectorType) and total.element == "i32"):
        return None
    bytes_of = VectorType("u8", total.lanes * 4), VectorType("i8", total.lanes * 4)
    if (unsigned, signed) != bytes_of:
        return None

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return emit_dot4(builder, *args)

    return total(total, unsigned, signed), codegen


@operation
def dot4_signed(typingctx: Any, total: Any, a: Any, b: Any) -> Any:
    """`dot4_signed(total, a, b)`: as `dot4` for two i8 vectors; exact for every a, and b of -127 to 127."""
    if not (isinstance(total, VectorType) and total.element == "i32"):
        return None
    kind = VectorType("i8", total.lanes * 4)
    if (a, b) != (kind, kind):
        return None

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        total_value, a_value, b_value = args
        # |a| * (b with a's sign); -128 becomes 128, which the unsigned operand holds.
        magnitude = build.overloaded(builder, "abs", [a_value, ir.IntType(1)(0)])
        return emit_dot4(builder, total_value, magnitude, emit_with_sign(builder, b_value, a_value))

    return total(total, a, b), codegen


def emit_with_sign(builder: ir.IRBuilder, value: ir.Value, sign: ir.Value) -> ir.Value:
    """IR: the bytes of `value` (not -128), negated where `sign` is negative; where it is zero, anything."""
    if target.current().vector_bytes == 32 and value.type.count == 32:
        return build.call(builder, "llvm.x86.avx2.psign.b", value.type, [value, sign])
    negative = builder.icmp_signed("<", sign, build.constant(sign.type, 0))
    return builder.select(negative, builder.neg(value), value)


def emit_dot4(builder: ir.IRBuilder, total: ir.Value, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    """IR of `dot4`."""
    level = target.current()
    lanes = total.type.count
    bits = lanes * 32
    if level.has_vnni and bits in (128, 256, 512) and bits // 8 <= level.vector_bytes:
        operands = [builder.bitcast(value, total.type) for value in (unsigned, signed)]
        return build.call(builder, f"llvm.x86.avx512.vpdpbusd.{bits}", total.type, [total, *operands])
    if level.vector_bytes == 32 and bits == 256:
        sixteen = ir.VectorType(ir.IntType(16), lanes * 2)
        pairs = build.call(builder, "llvm.x86.avx2.pmadd.ub.sw", sixteen, [unsigned, signed])
        ones = build.constant(sixteen, 1)
        return builder.add(total, build.call(builder, "llvm.x86.avx2.pmadd.wd", total.type, [pairs, ones]))
    return _dot4_generic(builder, total, unsigned, signed)


def _dot4_generic(builder: ir.IRBuilder, total: ir.Value, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    """Products of 16-bit numbers, neighbours added: LLVM makes pmaddwd or its like of this."""
    lanes = total.type.count
    wide = ir.VectorType(ir.IntType(32), lanes * 4)
    products = builder.mul(builder.zext(unsigned, wide), builder.sext(signed, wide))
    even = build.shuffle(builder, products, None, range(0, lanes * 4, 2))
    odd = build.shuffle(builder, products, None, range(1, lanes * 4, 2))
    pairs = builder.add(even, odd)
    even = build.shuffle(builder, pairs, None, range(0, lanes * 2, 2))
    odd = build.shuffle(builder, pairs, None, range(1, lanes * 2, 2))
    return builder.add(total, builder.add(even, odd))
