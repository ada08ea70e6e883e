"""Whether an op is what it says of itself: row by row, commutative.

Passes move and swap nodes by these facts: a false one changes a model's results. Knows ops with a reference,
and arrays for them; builds no graph.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphml.ir.op import Array, Attributes, Op, Type
from graphml.ir.shape import Symbol


def by_row(op: Op, inputs: Sequence[Type], attributes: Attributes) -> list[int]:
    """The operands of these types whose rows make those of the op's result, one by one."""
    made = op.infer(inputs, attributes)
    if not made.shape or not isinstance(made.shape[0], Symbol):
        return []
    every = [i for i in op.rowwise if i < len(inputs) and inputs[i].shape]
    return [i for i in every if inputs[i].shape[0] == made.shape[0]]


def not_by_row(op: Op, rows: Sequence[int], arrays: Sequence[Array], attributes: Attributes) -> str:
    """How the last and the first row alone differ from those rows of all; "" where they do not.

    rows: see `by_row`. arrays: an operand each.
    """
    assert op.reference is not None
    whole = op.reference([array.copy() for array in arrays], attributes)
    chosen = [len(whole) - 1, 0] if len(whole) > 1 else [0]
    picked = [np.ascontiguousarray(a[chosen]) if i in rows else a for i, a in enumerate(arrays)]
    found = op.reference(picked, attributes)
    if found.shape[0] == len(chosen) and _close(found, whole[chosen]):
        return ""
    return f"rows {chosen} of its operands alone make other rows than they do among all {len(whole)}"


def may_swap(op: Op, inputs: Sequence[Type]) -> bool:
    """Whether an op says that two operands of these types may be swapped."""
    return op.commutative and len(inputs) > 1 and inputs[0] == inputs[1]


def not_commutative(op: Op, arrays: Sequence[Array], attributes: Attributes) -> str:
    """How the result changes with its first two operands swapped; "" where it does not."""
    assert op.reference is not None
    a, b, *rest = arrays
    first, second = (op.reference([*pair, *rest], attributes) for pair in ((a, b), (b, a)))
    pairs = zip(first, second, strict=True) if first.dtype == object else [(first, second)]
    if all(_close(x, y) for x, y in pairs):
        return ""
    return "its result is another with its first two operands swapped"


def _close(a: Array, b: Array) -> bool:
    """Sums may be in another order."""
    return np.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)
