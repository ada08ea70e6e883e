"""Python's `//` and `%` of signed integers, made from the division of devices, which truncates towards 0.

Quotients are rounded down and remainders have the sign of the divisor. Where neither operand can be
negative the two divisions agree, and the device's is used; a power of two needs a shift or a mask.
"""

from __future__ import annotations

from graphml_gpu.language.context import KernelContext
from graphml_gpu.language.tree import Binary, Expression, LiteralValue, Unary
from graphml_gpu.language.types import ValueType
from graphml_gpu.language.walk import never_negative


def floored(context: KernelContext, sign: str, left: Expression, right: Expression) -> Expression:
    """`left // right` or `left % right` of i32 numbers or vectors of them; sign: "//" or "%".

    -2**31 // -1 has no result in 32 bits: any number comes of it, as of a division by 0.
    """
    kind = left.type if left.type.lanes >= right.type.lanes else right.type
    if never_negative(left) and never_negative(right):
        return Binary(sign, left, right, kind)
    left, right = context.spread(left, kind), context.spread(right, kind)
    if isinstance(right, LiteralValue) and right.value > 0 and (divisor := int(right.value)).bit_count() == 1:
        if sign == "%":
            return Binary("&", left, LiteralValue(divisor - 1, kind), kind)
        return Binary(">>", left, LiteralValue(divisor.bit_length() - 1, ValueType("u32", kind.lanes)), kind)
    left, right = context.plain("dividend", left), context.plain("divisor", right)
    quotient = context.fixed("quotient", Binary("//", left, right, kind))
    rest = context.fixed("rest", Binary("-", left, Binary("*", quotient, right, kind), kind))
    below = _where_too_large(rest, right)
    if sign == "//":
        return Binary("+", quotient, below, kind)
    return Binary("+", rest, Binary("&", right, below, kind), kind)


def _where_too_large(rest: Expression, divisor: Expression) -> Expression:
    """-1 where truncation rounded up: rest is not 0, and its sign is not the divisor's; else 0."""
    kind = rest.type
    signs = rest
    if not never_negative(divisor):
        not_zero = Binary("|", rest, Unary("-", rest, kind), kind)
        signs = Binary("&", Binary("^", rest, divisor, kind), not_zero, kind)
    return Binary(">>", signs, LiteralValue(31, ValueType("u32", kind.lanes)), kind)
