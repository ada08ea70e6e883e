"""Element by element operations beyond Python's operators: fma, min, max, rounding, selection, conversion.

Each works on vectors; those marked so also on scalar float32. Nothing here touches memory.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir

from graphml_cpu import target
from graphml_cpu.frontend import types
from graphml_cpu.frontend.operation import operation
from graphml_cpu.simd import build
from graphml_cpu.simd.types import VectorType, splat_value


def _is_float(kind: Any) -> bool:
    return kind.is_float if isinstance(kind, VectorType) else isinstance(kind, types.Float)


@operation
def splat(vector: Any, value: Any) -> Any:
    """`splat(F32, x)`: the number x in every lane."""
    result = vector.instance_type

    def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
        if result.element != "f16":
            return splat_value(builder, args[1], result)
        return splat_value(builder, builder.fptrunc(args[1], ir.HalfType()), result)

    return result(vector, result.scalar), emit


@operation
def splat_like(vector: Any, value: Any) -> Any:
    """`splat_like(v, x)`: the number x in as many lanes as the vector v has, of its type."""
    if not isinstance(vector, VectorType) or vector.element == "f16":
        return None
    return vector(vector, vector.scalar), lambda builder, *args: splat_value(builder, args[1], vector)


@operation
def zero(vector: Any) -> Any:
    """`zero(F32)`: zero in every lane."""
    result = vector.instance_type
    return result(vector), lambda _builder, *_args: build.constant(result.llvm_type, 0)


@operation
def ramp(vector: Any) -> Any:
    """`ramp(I32)`: 0, 1, 2, ... one per lane (integers or floats)."""
    result = vector.instance_type

    def emit(_builder: ir.IRBuilder, *_args: Any) -> ir.Value:
        return ir.Constant(
            result.llvm_type, [ir.Constant(result.llvm_element, lane) for lane in range(result.lanes)]
        )

    return result(vector), emit


@operation
def fma(a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once where the level has the instruction, else twice; vectors or scalar float32."""
    if not (_is_float(a) and a == b):
        return None
    kind = a if isinstance(a, VectorType) else types.float32
    return kind(kind, kind, kind), lambda builder, *args: build.multiply_add(builder, *args)


def _pick(builder: ir.IRBuilder, kind: Any, symbol: str, a: ir.Value, b: ir.Value) -> ir.Value:
    if _is_float(kind):
        chosen = builder.fcmp_ordered(symbol, a, b)
    elif kind.is_signed:
        chosen = builder.icmp_signed(symbol, a, b)
    else:
        chosen = builder.icmp_unsigned(symbol, a, b)
    return builder.select(chosen, a, b)


@operation
def minimum(a: Any, b: Any) -> Any:
    """The smaller of each pair; b if one of them is NaN. Vectors or scalar float32."""
    kind = a if isinstance(a, VectorType) else types.float32
    return kind(kind, kind), lambda builder, *args: _pick(builder, kind, "<", *args)


@operation
def maximum(a: Any, b: Any) -> Any:
    """The larger of each pair; b if one of them is NaN. Vectors or scalar float32."""
    kind = a if isinstance(a, VectorType) else types.float32
    return kind(kind, kind), lambda builder, *args: _pick(builder, kind, ">", *args)


@operation
def absolute(a: Any) -> Any:
    """The absolute value; the most negative integer stays as it is. Vectors or scalar float32."""
    kind = a if isinstance(a, VectorType) else types.float32

    def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
        if _is_float(kind):
            return build.overloaded(builder, "fabs", args)
        return build.overloaded(builder, "abs", [args[0], ir.IntType(1)(0)])

    return kind(kind), emit


@operation
def square_root(a: Any) -> Any:
    """The square root, correctly rounded. Vectors or scalar float32."""
    kind = a if isinstance(a, VectorType) else types.float32
    return kind(kind), lambda builder, *args: build.overloaded(builder, "sqrt", args)


@operation
def round_even(a: Any) -> Any:
    """To the nearest integer, ties to even, as a float. Vectors of float32 or scalar float32."""
    kind = a if isinstance(a, VectorType) else types.float32

    def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
        (value,) = args
        level = target.current()
        if level.name != "plain" or level.architecture != "x86":
            return build.overloaded(builder, "rint", [value])
        # SSE2 has no rounding instruction: 2**23 + |x| has no bits left for a fraction.
        big = build.constant(value.type, 2.0**23)
        magnitude = build.overloaded(builder, "fabs", [value])
        rounded = build.overloaded(
            builder, "copysign", [builder.fsub(builder.fadd(magnitude, big), big), value]
        )
        return builder.select(builder.fcmp_ordered("<", magnitude, big), rounded, value)

    return kind(kind), emit


@operation
def select(mask: Any, a: Any, b: Any) -> Any:
    """`select(mask, a, b)`: lanes of a where the mask is set, else of b (one of them may be a scalar)."""
    kind = a if isinstance(a, VectorType) else b
    if not isinstance(kind, VectorType):
        return None
    return kind(mask, kind, kind), lambda builder, *args: builder.select(*args)


@operation
def bitcast(vector: Any, value: Any) -> Any:
    """`bitcast(U8, v)`: the same bits seen as another vector type of the same size."""
    result = vector.instance_type
    if not isinstance(value, VectorType) or result.bits * result.lanes != value.bits * value.lanes:
        return None

    def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
        if result.element == "i1" and result.lanes % 8 == 0 and target.current().vector_bytes < 64:
            return build.mask_of_bits(builder, args[1], result.lanes)
        return builder.bitcast(args[1], result.llvm_type)

    return result(vector, value), emit


def _bitcast_like(source: str, result: str) -> Any:
    def reinterpret(value: Any) -> Any:
        if not isinstance(value, VectorType) or value.element != source:
            return None

        def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
            return builder.bitcast(args[0], value.like(result).llvm_type)

        return value.like(result)(value), emit

    reinterpret.__doc__ = f"The bits of {source} lanes as {result} lanes."
    return operation(reinterpret)


bitcast_like_i32 = _bitcast_like("f32", "i32")
bitcast_like_f32 = _bitcast_like("i32", "f32")


@operation
def to_float(value: Any) -> Any:
    """The float32 value of each int32 lane."""
    if not isinstance(value, VectorType) or value.element != "i32":
        return None

    def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
        return builder.sitofp(args[0], value.like("f32").llvm_type)

    return value.like("f32")(value), emit


@operation
def copy_sign(magnitude: Any, sign: Any) -> Any:
    """The first operand with the sign of the second; vectors or scalar float32."""
    kind = magnitude if isinstance(magnitude, VectorType) else types.float32
    return kind(kind, kind), lambda builder, *args: build.overloaded(builder, "copysign", args)


@operation
def float_bits(value: Any) -> Any:
    """The bits of a scalar float32 as int64."""

    def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
        return builder.zext(builder.bitcast(args[0], build.I32), ir.IntType(64))

    return types.int64(types.float32), emit


@operation
def float_from_bits(bits: Any) -> Any:
    """The scalar float32 whose bits are the low 32 of an integer."""

    def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
        return builder.bitcast(builder.trunc(args[0], build.I32), ir.FloatType())

    return types.float32(types.int64), emit


@operation
def convert(vector: Any, value: Any) -> Any:
    """`convert(I32, v)`: each lane's value in another element type, lanes unchanged.

    Integers widen by the source's sign and narrow by dropping high bits; float to integer truncates toward
    zero and is defined only in range (clamp first, and mind NaN); float to half rounds to nearest even.
    """
    result = vector.instance_type
    if not isinstance(value, VectorType) or result.lanes != value.lanes:
        return None
    return result(vector, value), lambda builder, *args: _convert(builder, args[1], value, result)


def _convert(builder: ir.IRBuilder, value: ir.Value, source: VectorType, result: VectorType) -> ir.Value:
    if "f16" in (source.element, result.element) and not target.current().has_f16c:
        return _convert_half(builder, value, source, result)
    if source.is_float and result.is_float:
        if source.bits == result.bits:
            return value
        return (builder.fpext if source.bits < result.bits else builder.fptrunc)(value, result.llvm_type)
    if source.is_float:
        return (builder.fptosi if result.is_signed else builder.fptoui)(value, result.llvm_type)
    if result.is_float:
        return (builder.sitofp if source.is_signed else builder.uitofp)(value, result.llvm_type)
    return build.resize_integers(builder, value, source, result)


def _convert_half(builder: ir.IRBuilder, value: ir.Value, source: VectorType, result: VectorType) -> ir.Value:
    """Conversions from and to halves by integer arithmetic, through float32."""
    single, wide, narrow = (source.like(element).llvm_type for element in ("f32", "u32", "u16"))
    if source.element == "f16":
        singles = build.half_to_single(builder, builder.zext(builder.bitcast(value, narrow), wide))
        return _convert(builder, singles, source.like("f32"), result)
    in_single = value if value.type == single else _convert(builder, value, source, source.like("f32"))
    bits = builder.trunc(build.single_to_half(builder, in_single), narrow)
    return builder.bitcast(bits, result.llvm_type)


@operation
def narrow_saturated(vector: Any, value: Any) -> Any:
    """`narrow_saturated(I8, v)`: signed integer lanes clamped to the range of a narrower type."""
    result = vector.instance_type
    if not isinstance(value, VectorType) or result.lanes != value.lanes or result.bits >= value.bits:
        return None
    low = -(1 << (result.bits - 1)) if result.is_signed else 0
    high = (1 << (result.bits - 1)) - 1 if result.is_signed else (1 << result.bits) - 1

    def emit(builder: ir.IRBuilder, *args: Any) -> ir.Value:
        kind = value.llvm_type
        bounded = build.overloaded(builder, "smax", [args[1], build.constant(kind, low)])
        bounded = build.overloaded(builder, "smin", [bounded, build.constant(kind, high)])
        return builder.trunc(bounded, result.llvm_type)

    return result(vector, value), emit
