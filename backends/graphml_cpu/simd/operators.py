"""Python's operators on vectors: `+ - * / & | ^ << >> ~`, unary minus and comparisons.

Both operands have the same vector type, or one of them is a scalar that goes into every lane. Nothing is
contracted or reordered: `a * b + c` rounds twice, `fma(a, b, c)` once where the level can.
Comparisons give masks (element "i1") for `select`; shifts by a vector shift lane by lane.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import llvmlite.ir as ir
from numba import types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin

from graphml_cpu.simd.types import VectorType

Emit = Callable[[ir.IRBuilder, VectorType, ir.Value, ir.Value], ir.Value]


def _common_type(a: Any, b: Any) -> VectorType | None:
    vectors = [operand for operand in (a, b) if isinstance(operand, VectorType)]
    if not vectors or any(other != vectors[0] for other in vectors[1:]):
        return None
    scalars = [operand for operand in (a, b) if not isinstance(operand, VectorType)]
    return (
        vectors[0] if all(isinstance(scalar, (types.Number, types.Boolean)) for scalar in scalars) else None
    )


def _register(
    function: Any, emit: Emit, *, result: str | None = None, allows: Callable[[VectorType], bool]
) -> None:
    class Template(AbstractTemplate):  # type: ignore[misc]  # numba is untyped
        key = function

        def generic(self, args: Any, kws: Any) -> Any:
            operand = _common_type(*args) if len(args) == 2 else None
            if operand is None or not allows(operand):
                return None
            return signature(operand.like(result) if result else operand, operand, operand)

    infer_global(function)(Template)

    def lowering(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> ir.Value:
        return emit(builder, sig.args[0], args[0], args[1])

    lower_builtin(function, VectorType, VectorType)(lowering)


def _arithmetic(integer: str, floating: str | None) -> Emit:
    def emit(builder: ir.IRBuilder, vector: VectorType, a: ir.Value, b: ir.Value) -> ir.Value:
        name = floating if vector.is_float and floating else integer
        return getattr(builder, name)(a, b)

    return emit


def _shift_right(builder: ir.IRBuilder, vector: VectorType, a: ir.Value, b: ir.Value) -> ir.Value:
    return (builder.ashr if vector.is_signed else builder.lshr)(a, b)


def _comparison(symbol: str) -> Emit:
    def emit(builder: ir.IRBuilder, vector: VectorType, a: ir.Value, b: ir.Value) -> ir.Value:
        if vector.is_float:
            # Ordered, so that NaN compares unequal, smaller and greater to nothing; != is the one exception.
            return (builder.fcmp_unordered if symbol == "!=" else builder.fcmp_ordered)(symbol, a, b)
        return (builder.icmp_signed if vector.is_signed else builder.icmp_unsigned)(symbol, a, b)

    return emit


def _anything(vector: VectorType) -> bool:
    return True


def _floats(vector: VectorType) -> bool:
    return vector.is_float


def _integers(vector: VectorType) -> bool:
    return not vector.is_float


for _functions, _emit, _allows in (
    ((operator.add, operator.iadd), _arithmetic("add", "fadd"), _anything),
    ((operator.sub, operator.isub), _arithmetic("sub", "fsub"), _anything),
    ((operator.mul, operator.imul), _arithmetic("mul", "fmul"), _anything),
    ((operator.truediv, operator.itruediv), _arithmetic("", "fdiv"), _floats),
    ((operator.and_, operator.iand), _arithmetic("and_", None), _integers),
    ((operator.or_, operator.ior), _arithmetic("or_", None), _integers),
    ((operator.xor, operator.ixor), _arithmetic("xor", None), _integers),
    ((operator.lshift, operator.ilshift), _arithmetic("shl", None), _integers),
    ((operator.rshift, operator.irshift), _shift_right, _integers),
):
    for _function in _functions:
        _register(_function, _emit, allows=_allows)
for _function, _symbol in (
    (operator.lt, "<"),
    (operator.le, "<="),
    (operator.gt, ">"),
    (operator.ge, ">="),
    (operator.eq, "=="),
    (operator.ne, "!="),
):
    _register(_function, _comparison(_symbol), result="i1", allows=_anything)


@infer_global(operator.neg)
class _NegateTemplate(AbstractTemplate):  # type: ignore[misc]
    key = operator.neg

    def generic(self, args: Any, kws: Any) -> Any:
        return signature(args[0], args[0]) if isinstance(args[0], VectorType) else None


@infer_global(operator.invert)
class _InvertTemplate(AbstractTemplate):  # type: ignore[misc]
    key = operator.invert

    def generic(self, args: Any, kws: Any) -> Any:
        (operand,) = args
        return (
            signature(operand, operand) if isinstance(operand, VectorType) and not operand.is_float else None
        )


def _negate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> ir.Value:
    return builder.fneg(args[0]) if sig.args[0].is_float else builder.neg(args[0])


def _invert(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> ir.Value:
    return builder.not_(args[0])


lower_builtin(operator.neg, VectorType)(_negate)
lower_builtin(operator.invert, VectorType)(_invert)
