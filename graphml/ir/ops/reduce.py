"""Reductions over the last dimension, softmax and running sums among them, and means over rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphml.errors import ShapeError
from graphml.ir.dtype import I32
from graphml.ir.op import Array, Attributes, Op, Sample, Type
from graphml.ir.ops.rows_by_number import inside, rows_at
from graphml.ir.ops.rules import (
    ROWS,
    below,
    f32,
    i32,
    partly_below,
    same_shape,
    singles,
    some_of,
    want_dtype,
    want_float,
)


def _infer_one(inputs: Sequence[Type], attributes: Attributes) -> Type:
    want_float(inputs)
    return Type(inputs[0].dtype, (*inputs[0].shape[:-1], 1))


def _sum(inputs: Sequence[Array], attributes: Attributes) -> Array:
    return np.asarray(inputs[0].astype(np.float64).sum(-1, keepdims=True), dtype=np.float32)


def _cumsum(inputs: Sequence[Array], attributes: Attributes) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.cumsum(inputs[0].astype(np.float64), axis=-1).astype(np.float32)


def _extremes() -> list[Sample]:
    """Rows with equal numbers, infinities and NaN, too."""
    infinite = some_of(float("-inf"), 1.0, float("inf"))
    fills = (some_of(-2.0, 1.0, 1.0), infinite, some_of(float("nan"), 0.0), some_of(float("-inf")))
    return [*singles(), *(Sample((f32(ROWS, 5),), fill={0: fill}) for fill in fills)]


def _softmax(inputs: Sequence[Array], attributes: Attributes) -> Array:
    x = inputs[0].astype(np.float64)
    weight = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(weight / weight.sum(axis=-1, keepdims=True), dtype=np.float32)


def _infer_mean(inputs: Sequence[Type], attributes: Attributes) -> Type:
    x, rows, sequences, lengths = inputs
    want_float([x])
    for value, role in ((rows, "rows"), (sequences, "sequences"), (lengths, "lengths")):
        want_dtype(value, I32, role)
    if len(x.shape) != 2 or rows.shape != x.shape[:1] or len(sequences.shape) != 1 or len(lengths.shape) != 1:
        raise ShapeError(
            f"wanted x [O, D], rows [O], sequences [T], lengths [S]; got {x}, {rows}, {sequences}, {lengths}"
        )
    return Type(x.dtype, (lengths.shape[0], x.shape[1]))


def _mean(inputs: Sequence[Array], attributes: Attributes) -> Array:
    """Means over the rows of x [O, D] of each sequence, [S, D]; zeros for a sequence without rows.

    rows [O]: the token of each row, sequences [T] those of tokens. A row whose token or sequence is outside
    is left out.
    """
    x, rows, sequences, lengths = inputs
    y = np.zeros((len(lengths), x.shape[1]), np.float32)
    of, known = rows_at(sequences, rows)
    of = np.where(known, of, -1)
    for sequence in np.unique(of[inside(of, len(lengths))]):
        y[sequence] = x[of == sequence].astype(np.float64).mean(axis=0)
    return y


def _mean_samples() -> list[Sample]:
    def number_rows(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return np.asarray(generator.permutation(shape[0]), np.int32)

    fill = {1: number_rows, 2: below(3), 3: below(9)}
    astray = {**fill, 1: partly_below(5), 2: partly_below(3)}
    usual = [Sample((f32(ROWS, n), i32(ROWS), i32(ROWS), i32(3)), {}, fill) for n in (1, 7, 64, 130)]
    return [*usual, Sample((f32(ROWS, 64), i32(ROWS), i32(ROWS), i32(3)), {}, astray)]


softmax = Op("softmax", "reduce", infer=same_shape, reference=_softmax, samples=singles, inplace=(0,),
             rowwise=(0,))  # fmt: skip
sum_rows = Op("sum_rows", "reduce", infer=_infer_one, reference=_sum, samples=singles, rowwise=(0,))
max_rows = Op("max_rows", "reduce", infer=_infer_one, samples=_extremes, rowwise=(0,),
              reference=lambda inputs, at: inputs[0].max(-1, keepdims=True))  # fmt: skip
min_rows = Op("min_rows", "reduce", infer=_infer_one, samples=_extremes, rowwise=(0,),
              reference=lambda inputs, at: inputs[0].min(-1, keepdims=True))  # fmt: skip
cumsum = Op("cumsum", "reduce", infer=same_shape, reference=_cumsum, samples=singles, inplace=(0,),
            rowwise=(0,))  # fmt: skip
mean_rows = Op("mean_rows", "reduce", infer=_infer_mean, reference=_mean, samples=_mean_samples)
