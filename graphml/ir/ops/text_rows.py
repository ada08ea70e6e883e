"""Rows of whole texts: what a token's neighbours hold, and the mean over its text.

For texts that are read in one step, whose tokens see those behind them. Tokens of one sequence are a text, in
the order of their positions. A token whose sequence is negative has zeros, and counts for none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphml.errors import GraphError, ShapeError
from graphml.ir.dtype import F32, I32
from graphml.ir.op import Array, Attributes, Op, Sample, Type, integer
from graphml.ir.ops.rules import ROWS, f32, i32, want_dtype
from graphml.ir.shape import fixed


def _want_rows(x: Type, sequences: Type) -> None:
    want_dtype(x, F32, "x")
    want_dtype(sequences, I32, "sequences")
    if len(x.shape) != 2 or sequences.shape != x.shape[:1]:
        raise ShapeError(f"wanted x [T, n] and a sequence for each row; got {x}, {sequences}")


def _infer_neighbours(inputs: Sequence[Type], attributes: Attributes) -> Type:
    x, sequences, positions = inputs
    _want_rows(x, sequences)
    want_dtype(positions, I32, "positions")
    if positions.shape != sequences.shape:
        raise ShapeError(f"wanted a position for each row of x {x}; got {positions}")
    if integer(attributes, "reach") < 0:
        raise GraphError(f"wanted a reach of at least 0; got {integer(attributes, 'reach')}")
    return Type(F32, (x.shape[0], fixed(x.shape[1]), 2 * integer(attributes, "reach") + 1))


def _neighbours(inputs: Sequence[Array], attributes: Attributes) -> Array:
    """Zeros beyond both ends of a text."""
    x, sequences, positions = inputs
    reach = integer(attributes, "reach")
    places = list(zip(sequences.tolist(), positions.tolist(), strict=True))
    row_at = {place: t for t, place in enumerate(places)}
    y = np.zeros((*x.shape, 2 * reach + 1), np.float32)
    for t, (sequence, position) in enumerate(places):
        for offset in range(-reach, reach + 1) if sequence >= 0 else ():
            other = row_at.get((sequence, position + offset))
            if other is not None:
                y[t, :, offset + reach] = x[other]
    return y


def _infer_means(inputs: Sequence[Type], attributes: Attributes) -> Type:
    x, sequences = inputs
    _want_rows(x, sequences)
    return x


def _means(inputs: Sequence[Array], attributes: Attributes) -> Array:
    """In float64."""
    x, sequences = inputs
    y = np.zeros_like(x)
    for sequence in np.unique(sequences[sequences >= 0]):
        own = sequences == sequence
        y[own] = x[own].mean(axis=0, dtype=np.float64)
    return y


def _samples(*attributes: Attributes) -> list[Sample]:
    places = (i32(ROWS), i32(ROWS)) if attributes[0] else (i32(ROWS),)
    fill = {1: _two_texts, 2: lambda generator, shape: np.arange(shape[0], dtype=np.int32)}
    own = {i: maker for i, maker in fill.items() if i <= len(places)}
    return [
        Sample((f32(ROWS, n), *places), chosen, own) for n, chosen in zip((6, 33), attributes, strict=True)
    ]


def _two_texts(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """The first token belongs to none."""
    sequences = np.sort(generator.integers(0, 2, shape, dtype=np.int32))
    sequences[:1] = -1
    return sequences


neighbours = Op("neighbours", "index", infer=_infer_neighbours, reference=_neighbours,
                samples=lambda: _samples({"reach": 1}, {"reach": 3}), attributes={"reach": None})  # fmt: skip
text_means = Op("text_means", "reduce", infer=_infer_means, reference=_means,
                samples=lambda: _samples({}, {}))  # fmt: skip
