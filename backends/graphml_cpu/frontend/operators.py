"""Python's operators on numbers and vectors, and conversions: each is a few LLVM instructions.

Integers have 64 bits, signed ones may not overflow. `//` and `%` are Python's: rounded down, with the sign of
the divisor. Division by zero follows NumPy: infinity for floats, 0 for integers. `float32 * int64` and
`float32 * 0.5` are float64. Vectors need operands of the same type, or one number, which goes into every
lane. Nothing is contracted or reordered: `a * b + c` rounds twice. Comparisons of vectors give masks (element
"i1"); NaN compares unequal.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import llvmlite.ir as ir

from graphml_cpu.frontend.types import (
    Boolean,
    Float,
    Integer,
    LlvmType,
    VectorType,
    boolean,
    float32,
    float64,
    int64,
    uint64,
)

Emitted = tuple[LlvmType, ir.Value]


class OperatorTypeError(TypeError):
    """An operator has no meaning for its operands' types."""


COMPARISONS = {
    operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=", operator.eq: "==",
    operator.ne: "!=",
}  # fmt: skip
# Operator -> (builder's method for integers, the one for floats).
_METHODS: dict[Callable[..., Any], tuple[str, str]] = {
    operator.add: ("add", "fadd"),
    operator.sub: ("sub", "fsub"),
    operator.mul: ("mul", "fmul"),
    operator.truediv: ("", "fdiv"),
    operator.and_: ("and_", ""),
    operator.or_: ("or_", ""),
    operator.xor: ("xor", ""),
    operator.lshift: ("shl", ""),
}
_MAY_NOT_WRAP = (operator.add, operator.sub, operator.mul)
_BITWISE = (operator.and_, operator.or_, operator.xor)


def common(a: LlvmType, b: LlvmType) -> LlvmType | None:
    """The type of numbers that holds both; None where there is none."""
    if a is b:
        return a
    kinds = (a, b)
    if not all(isinstance(kind, (Integer, Float, Boolean)) for kind in kinds):
        return None
    if any(isinstance(kind, Float) for kind in kinds):
        return float64
    return None if uint64 in kinds else int64


def cast(builder: ir.IRBuilder, value: ir.Value, source: LlvmType, target: LlvmType) -> ir.Value:
    """A number as another type of number, or in every lane of a vector. Raises `OperatorTypeError`."""
    if source is target:
        return value
    if isinstance(target, VectorType) and not isinstance(source, VectorType):
        return _in_every_lane(builder, cast(builder, value, source, target.scalar), target)
    if isinstance(source, Float) and isinstance(target, (Float, Integer, Boolean)):
        return _cast_float(builder, value, source, target)
    if isinstance(source, (Integer, Boolean)) and isinstance(target, (Float, Integer, Boolean)):
        return _cast_integer(builder, value, isinstance(source, Integer) and source.signed, target)
    raise OperatorTypeError(f"{source!r} is not converted to {target!r}")


def _cast_float(builder: ir.IRBuilder, value: ir.Value, source: Float, target: LlvmType) -> ir.Value:
    if isinstance(target, Float):
        return (builder.fptrunc if target.bits < source.bits else builder.fpext)(value, target.llvm_type)
    if isinstance(target, Integer):
        return (builder.fptosi if target.signed else builder.fptoui)(value, target.llvm_type)
    return builder.fcmp_unordered("!=", value, value.type(0.0))


def _cast_integer(builder: ir.IRBuilder, value: ir.Value, signed: bool, target: LlvmType) -> ir.Value:
    if isinstance(target, Float):
        return (builder.sitofp if signed else builder.uitofp)(value, target.llvm_type)
    if not isinstance(target, Integer):
        return builder.icmp_signed("!=", value, value.type(0))
    bits = value.type.width
    if target.bits <= bits:
        return value if target.bits == bits else builder.trunc(value, target.llvm_type)
    return (builder.sext if signed else builder.zext)(value, target.llvm_type)


def _in_every_lane(builder: ir.IRBuilder, value: ir.Value, vector: VectorType) -> ir.Value:
    if vector.element == "f16":
        value = builder.fptrunc(value, ir.HalfType())
    return splat_value(builder, value, vector)


def splat_value(builder: ir.IRBuilder, value: ir.Value, vector: VectorType) -> ir.Value:
    """IR for a vector with `value` in every lane."""
    if isinstance(value, ir.Constant) and value.constant is not ir.Undefined:
        return ir.Constant(vector.llvm_type, [value] * vector.lanes)
    undefined = ir.Constant(vector.llvm_type, ir.Undefined)
    first_lane = builder.insert_element(undefined, value, ir.IntType(32)(0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), vector.lanes), [0] * vector.lanes)
    return builder.shuffle_vector(first_lane, undefined, zeros)


def binary(builder: ir.IRBuilder, function: Callable[..., Any], a: Emitted, b: Emitted) -> Emitted:
    """`function` of the module `operator` on two values. Raises `OperatorTypeError`."""
    vectors = [kind for kind, _ in (a, b) if isinstance(kind, VectorType)]
    kind = (
        (vectors[0] if all(vector is vectors[0] for vector in vectors) else None)
        if vectors
        else common(a[0], b[0])
    )
    if (
        isinstance(kind, VectorType)
        and not kind.is_float
        and any(isinstance(operand_kind, Float) for operand_kind, _ in (a, b))
    ):
        kind = None
    if kind is not None:
        kind = _worked_in(function, kind)
        left, right = (cast(builder, value, source, kind) for source, value in (a, b))
        emitted = _emit(builder, function, kind, left, right)
        if emitted is not None:
            return emitted
    raise OperatorTypeError(f"{function.__name__} of {a[0]!r} and {b[0]!r}")


def _worked_in(function: Callable[..., Any], kind: LlvmType) -> LlvmType:
    """The type that both operands are converted to, given what they have in common."""
    if isinstance(kind, VectorType) or (kind is boolean and function in _BITWISE):
        return kind
    if function is operator.truediv and not isinstance(kind, Float):
        return float64
    if isinstance(kind, Integer):
        return uint64 if kind is uint64 else int64
    return int64 if kind is boolean else kind


def _check_shift(kind: Any, by: ir.Value) -> None:
    """Raise `OperatorTypeError` for a known count that a value of `kind` has no bits for."""
    count = by.constant if isinstance(by, ir.Constant) else 0
    count = count[0].constant if isinstance(count, list | tuple) else count
    if isinstance(count, int) and not 0 <= count < kind.bits:
        raise OperatorTypeError(f"a shift by {count} of {kind!r}")


def _emit(builder: ir.IRBuilder, function: Any, kind: Any, a: ir.Value, b: ir.Value) -> Emitted | None:
    is_vector = isinstance(kind, VectorType)
    if is_vector and kind.element == "i1" and function not in (*_BITWISE, operator.eq, operator.ne):
        return None
    is_float = kind.is_float if is_vector else isinstance(kind, Float)
    if function in (operator.lshift, operator.rshift) and not is_float:
        _check_shift(kind, b)
    is_signed = kind.is_signed if is_vector else isinstance(kind, Integer) and kind.signed
    if function in COMPARISONS:
        result = kind.like("i1") if is_vector else boolean
        return result, compare(builder, COMPARISONS[function], a, b, is_float, is_signed)
    if function is operator.rshift and not is_float:
        return kind, (builder.ashr if is_signed else builder.lshr)(a, b)
    if function in (operator.floordiv, operator.mod) and isinstance(kind, Integer):
        return kind, _divided(builder, function is operator.mod, kind, a, b)
    method = _METHODS.get(function, ("", ""))[is_float]
    if not method:
        return None
    # A sum of whole numbers that wraps is a mistake: LLVM may count on there being none.
    flags = ("nsw",) if kind is int64 and function in _MAY_NOT_WRAP else ()
    return kind, getattr(builder, method)(a, b, flags=flags)


def compare(
    builder: ir.IRBuilder, symbol: str, a: ir.Value, b: ir.Value, is_float: bool, is_signed: bool
) -> Any:
    """A comparison of numbers or of vectors, lane by lane."""
    if is_float:
        # Ordered, so that NaN compares unequal, smaller and greater to nothing; != is the one exception.
        return (builder.fcmp_unordered if symbol == "!=" else builder.fcmp_ordered)(symbol, a, b)
    return (builder.icmp_signed if is_signed else builder.icmp_unsigned)(symbol, a, b)


def _divided(builder: ir.IRBuilder, is_rest: bool, kind: Integer, a: ir.Value, b: ir.Value) -> ir.Value:
    """The quotient rounded down, or what is left of a; both 0 where b is."""
    zero, unit = kind.llvm_type(0), kind.llvm_type(1)
    if isinstance(b, ir.Constant) and b.constant > 0:
        if not b.constant & (b.constant - 1):
            if is_rest:
                return builder.and_(a, kind.llvm_type(b.constant - 1))
            by = kind.llvm_type(b.constant.bit_length() - 1)
            return (builder.ashr if kind.signed else builder.lshr)(a, by)
        return _floored(builder, is_rest, kind, a, b)
    is_zero = builder.icmp_unsigned("==", b, zero)
    floored = _floored(builder, is_rest, kind, a, builder.select(is_zero, unit, b))
    return builder.select(is_zero, zero, floored)


def _floored(builder: ir.IRBuilder, is_rest: bool, kind: Integer, a: ir.Value, b: ir.Value) -> ir.Value:
    if not kind.signed:
        return (builder.urem if is_rest else builder.udiv)(a, b)
    zero = kind.llvm_type(0)
    rest = builder.srem(a, b)
    differs = builder.icmp_signed("<", builder.xor(rest, b), zero)
    rounded_up = builder.and_(differs, builder.icmp_signed("!=", rest, zero))
    if is_rest:
        return builder.select(rounded_up, builder.add(rest, b), rest)
    return builder.sub(builder.sdiv(a, b), builder.zext(rounded_up, kind.llvm_type))


def negative(builder: ir.IRBuilder, a: Emitted) -> Emitted:
    """`-a`. Raises `OperatorTypeError`."""
    kind, value = a
    if isinstance(kind, Float) or (isinstance(kind, VectorType) and kind.is_float):
        return kind, builder.fneg(value)
    if isinstance(kind, VectorType):
        return kind, builder.neg(value)
    return binary(builder, operator.sub, (int64, ir.IntType(64)(0)), a)


def inverted(builder: ir.IRBuilder, a: Emitted) -> Emitted:
    """`~a` of whole numbers, vectors of them, and masks. Raises `OperatorTypeError`."""
    kind, value = a
    if isinstance(kind, Integer) or (isinstance(kind, VectorType) and not kind.is_float):
        return kind, builder.not_(value)
    raise OperatorTypeError(f"~ of {kind!r}")


def smaller_or_larger(builder: ir.IRBuilder, function: Any, best: Emitted, other: Emitted) -> Emitted:
    """`min` or `max` as Python has it: `other` if it is smaller or larger, else `best`."""
    kind = common(best[0], other[0])
    if kind is None:
        raise OperatorTypeError(f"{function.__name__} of {best[0]!r} and {other[0]!r}")
    held, value = (cast(builder, operand, source, kind) for source, operand in (best, other))
    symbol = operator.lt if function is min else operator.gt
    _, chosen = binary(builder, symbol, (kind, value), (kind, held))
    return kind, builder.select(chosen, value, held)


def absolute(builder: ir.IRBuilder, a: Emitted) -> Emitted:
    """`abs(a)` of a number. Raises `OperatorTypeError`."""
    kind, value = a
    if isinstance(kind, Integer) and kind.signed:
        below = builder.icmp_signed("<", value, value.type(0))
        return kind, builder.select(below, builder.neg(value), value)
    if kind is float32 or kind is float64:
        function_type = ir.FunctionType(value.type, [value.type])
        return kind, builder.call(
            builder.module.declare_intrinsic("llvm.fabs", [value.type], function_type), [value]
        )
    raise OperatorTypeError(f"abs of {kind!r}")
