"""What need not be worked out on a device: integers that are known, x + 0, x % 1, loops of one turn.

They come from sizes that are constants of a kernel. Floats are left as they are: 0 * x may be NaN.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

from graphml_gpu.language.tree import Binary, Expression, Index, LiteralValue
from graphml_gpu.language.types import BOOL

_FOLDS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
}
_NOTHING = {"+": 0, "-": 0, "*": 1, "//": 1, "<<": 0, ">>": 0, "|": 0, "^": 0}
"""What the right side (of + * | ^ also the left) is where the other is the result."""


def simplified(sign: str, left: Expression, right: Expression) -> Expression | None:
    """`left sign right` of integers as something simpler; None where there is nothing."""
    if not left.type.is_integer or not right.type.is_integer:
        return None
    if isinstance(left, LiteralValue) and isinstance(right, LiteralValue) and left.type == right.type:
        return _folded(sign, left, right)
    wider = left.type.lanes - right.type.lanes
    if isinstance(right, LiteralValue) and wider >= 0:
        if _NOTHING.get(sign) == right.value:
            return left
        if (sign, right.value) in (("%", 1), ("*", 0), ("&", 0)):
            return LiteralValue(0, left.type)
    if isinstance(left, LiteralValue) and wider <= 0 and sign in "+*|^" and _NOTHING[sign] == left.value:
        return right
    return None


def _folded(sign: str, left: LiteralValue, right: LiteralValue) -> LiteralValue | None:
    """Of two known integers, wrapped as on a device; by 0: None."""
    a, b = int(left.value), int(right.value)
    unsigned = left.type.kind == "u32"
    if sign in _FOLDS and (b or sign not in ("//", "%")):
        value = _FOLDS[sign](a, b)
    elif unsigned and b < 32 and sign in ("<<", ">>"):
        value = a << b if sign == "<<" else a >> b
    else:
        return None
    value &= 0xFFFFFFFF
    return LiteralValue(value if unsigned or value < 2**31 else value - 2**32, left.type)


def turns(
    begin: Expression, end: Expression, step: Expression, group: tuple[int, int, int]
) -> bool | Expression | None:
    """Whether a loop has one turn (True), none (False), one where an expression says so; None: not known."""
    if not isinstance(end, LiteralValue) or not isinstance(step, LiteralValue):
        return None
    if isinstance(begin, LiteralValue):
        n = len(range(int(begin.value), int(end.value), int(step.value)))
        return n == 1 if n < 2 else None
    if not isinstance(begin, Index) or not step.value >= end.value > 0:
        return None
    sizes = {"local_id": group[begin.dimension or 0], "local_index": group[0] * group[1] * group[2]}
    if begin.which not in sizes:
        return None
    return True if sizes[begin.which] <= end.value else Binary("<", begin, end, BOOL)
