"""Shape rules and sample makers that several families of ops share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from graphml.errors import ShapeError
from graphml.ir.dtype import F32, I32, DType
from graphml.ir.op import Array, Attributes, Fill, Sample, Type
from graphml.ir.shape import Dim, Symbol

ROWS = Symbol("T", 5)


def want_dtype(value: Type, wanted: DType, role: str) -> None:
    """Raise a `ShapeError` unless the operand has the wanted element type."""
    if value.dtype is not wanted:
        raise ShapeError(f"wanted {role} of {wanted.name}; got {value}")


def want_float(values: Sequence[Type]) -> None:
    """Raise a `ShapeError` unless all operands are f32."""
    for i, value in enumerate(values):
        if value.dtype is not F32:  # the text is made for an error alone: this runs for every node
            want_dtype(value, F32, f"operand {i}")


def same_shape(inputs: Sequence[Type], attributes: Attributes) -> Type:
    """One f32 operand; the output is like it."""
    want_float(inputs)
    return inputs[0]


def want_stretch(a: Type, b: Type, role: str) -> None:
    """Raise a `ShapeError` unless b has the shape of a but for dimensions of 1 and missing leading ones."""
    if a.shape == b.shape:
        return
    padded: tuple[Dim, ...] = (1,) * (len(a.shape) - len(b.shape)) + b.shape
    if len(b.shape) > len(a.shape) or any(y not in (1, x) for x, y in zip(a.shape, padded, strict=True)):
        raise ShapeError(f"wanted a {role} that stretches to {a}; got {b}")


def broadcast(inputs: Sequence[Type], attributes: Attributes) -> Type:
    """Two f32 operands; the second is broadcast along its dimensions of 1 and its missing leading ones."""
    want_float(inputs)
    want_stretch(inputs[0], inputs[1], "second operand")
    return inputs[0]


def f32(*shape: Dim) -> Type:
    """An f32 type."""
    return Type(F32, shape)


def i32(*shape: Dim) -> Type:
    """An i32 type."""
    return Type(I32, shape)


def singles() -> list[Sample]:
    """Sample inputs of an op with one operand."""
    return [Sample((f32(ROWS, n),)) for n in (1, 7, 64, 130)] + [Sample((f32(2, 3, 33),))]


def some_of(*values: float) -> Fill:
    """A maker of operands whose elements are some of these numbers, so that many are equal."""
    return lambda generator, shape: generator.choice(np.array(values, np.float32), shape)


def sized(size: float) -> Fill:
    """A maker of normal numbers times a size: so small that an eps beside their squares matters, say."""
    return lambda generator, shape: (size * generator.standard_normal(shape)).astype(np.float32)


def pairs() -> list[Sample]:
    """Sample inputs of an op with two operands of one shape."""
    return [Sample((f32(ROWS, n), f32(ROWS, n))) for n in (1, 7, 64, 130)]


def stretched_pairs() -> list[Sample]:
    """Sample inputs of an op whose second operand may be broadcast."""
    return [*pairs(), Sample((f32(ROWS, 64), f32(64))), Sample((f32(ROWS, 70), f32(1))),
            Sample((f32(ROWS, 33), f32(ROWS, 1))), Sample((f32(ROWS, 3, 16), f32(16))),
            Sample((f32(ROWS, 3, 16), f32(ROWS, 3, 1))), Sample((f32(ROWS, 3, 16), f32(3, 1))),
            Sample((f32(ROWS, 3, 16), f32(ROWS, 1, 1))),
            Sample((f32(ROWS, 3, 16), f32(1, 3, 16)))]  # fmt: skip


def below(limit: int) -> Callable[[np.random.Generator, tuple[int, ...]], Array]:
    """How to fill an index operand: random numbers below `limit`."""
    return lambda generator, shape: generator.integers(0, limit, shape, dtype=np.int32)


OUTSIDE = (-1, 1 << 24, -(1 << 31), (1 << 31) - 1)
"""Indices that no table of a sample has; the products of the last two with a row's size overflow."""


def partly_below(limit: int) -> Callable[[np.random.Generator, tuple[int, ...]], Array]:
    """As `below`, but for every third, of which each is outside: `limit` itself or one of `OUTSIDE`."""

    def fill(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        numbers = below(limit)(generator, shape)
        flat = numbers.reshape(-1)
        flat[1::3] = np.resize((limit, *OUTSIDE), len(flat[1::3]))
        return numbers

    return fill


def distinct_or_outside(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """How to fill an operand of rows to write: distinct below three times their count, the second outside."""
    rows = generator.permutation(shape[0] * 3)[: shape[0]].astype(np.int32)
    rows[1::7] = np.resize(OUTSIDE, len(rows[1::7]))
    return rows
