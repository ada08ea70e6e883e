"""bfloat16: conversions from and to float32, and the dot product of pairs.

Knows which level multiplies bfloat16 in one instruction; everything also has a form for any processor.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir

from graphml_cpu import target
from graphml_cpu.frontend.operation import operation
from graphml_cpu.simd import build
from graphml_cpu.simd.types import VectorType


class _Bfloat(ir.Type):  # type: ignore[misc]
    """LLVM's `bfloat`, which llvmlite has no name for."""

    def __str__(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bfloat)

    def __hash__(self) -> int:
        return hash(_Bfloat)


@operation
def bf16_to_f32(bits: Any) -> Any:
    """The float32 of bfloat16 bits (lanes u16)."""
    if not isinstance(bits, VectorType) or bits.bits != 16:
        return None

    def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
        wide = bits.like("u32").llvm_type
        shifted = builder.shl(builder.zext(args[0], wide), build.constant(wide, 16))
        return builder.bitcast(shifted, bits.like("f32").llvm_type)

    return bits.like("f32")(bits), emit


def _emit_rounding(builder: ir.IRBuilder, number: ir.Value, kind: VectorType) -> ir.Value:
    wide = kind.like("u32").llvm_type
    bits = builder.bitcast(number, wide)
    last = builder.and_(builder.lshr(bits, build.constant(wide, 16)), build.constant(wide, 1))
    rounded = builder.add(bits, builder.add(last, build.constant(wide, 0x7FFF)))
    is_nan = builder.fcmp_unordered("uno", number, number)
    quiet = builder.or_(bits, build.constant(wide, 0x400000))
    high = builder.lshr(builder.select(is_nan, quiet, rounded), build.constant(wide, 16))
    return builder.trunc(high, kind.like("u16").llvm_type)


@operation
def f32_to_bf16(value: Any) -> Any:
    """The bfloat16 bits (lanes u16) of float32, rounded to nearest even; NaN stays NaN."""
    if not isinstance(value, VectorType) or value.element != "f32":
        return None
    return value.like("u16")(value), lambda builder, *args: _emit_rounding(builder, args[0], value)


@operation
def narrow_to_bf16(value: Any) -> Any:
    """As `f32_to_bf16`; where one instruction does it, subnormal numbers become zero."""
    if not isinstance(value, VectorType) or value.element != "f32":
        return None

    def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
        if not target.current().has_bf16 or value.lanes not in (8, 16):
            return _emit_rounding(builder, args[0], value)
        narrow = ir.VectorType(_Bfloat(), value.lanes)
        name = f"llvm.x86.avx512bf16.cvtneps2bf16.{value.lanes * 32}"
        return builder.bitcast(build.call(builder, name, narrow, args), value.like("u16").llvm_type)

    return value.like("u16")(value), emit


@operation
def dot2_bf16(total: Any, a: Any, b: Any) -> Any:
    """`dot2_bf16(total, a, b)`: each float32 lane of `total` plus two products of neighbours.

    A lane of a and b (int32) is two bfloat16. The odd product is added first, then the even one, each sum
    rounded to nearest even, as in a chain of two fused multiply-adds; products are exact. The instruction
    takes subnormal numbers for zero and makes zeros of subnormal results, the form for other levels does not.
    """
    lanes = VectorType("i32", total.lanes) if isinstance(total, VectorType) else None
    if lanes is None or total.element != "f32" or (a, b) != (lanes, lanes):
        return None
    return total(total, a, b), emit_dot2


def emit_dot2(builder: ir.IRBuilder, total: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """IR: float32 lanes of `total` plus the products of the pairs of bfloat16 in int32 lanes."""
    bits = total.type.count * 32
    if target.current().has_bf16 and bits in (128, 256, 512):
        pairs = ir.VectorType(_Bfloat(), total.type.count * 2)
        operands = [builder.bitcast(value, pairs) for value in (a, b)]
        return build.call(builder, f"llvm.x86.avx512bf16.dpbf16ps.{bits}", total.type, [total, *operands])
    sixteen, upper = build.constant(a.type, 16), build.constant(a.type, 0xFFFF0000)
    odd_a, odd_b = (builder.bitcast(builder.and_(value, upper), total.type) for value in (a, b))
    even_a, even_b = (builder.bitcast(builder.shl(value, sixteen), total.type) for value in (a, b))
    return build.multiply_add(builder, even_a, even_b, build.multiply_add(builder, odd_a, odd_b, total))
