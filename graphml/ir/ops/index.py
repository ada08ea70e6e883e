"""Reads and writes of rows by index. State is written by index, so that the graph stays static.

An index outside (negative ones are) reads as zeros, and a write to it is left out (`rows_by_number`).
"""

from __future__ import annotations

from collections.abc import Sequence

import graphml_quant
import numpy as np

from graphml.errors import GraphError, ShapeError
from graphml.ir.dtype import F32, I32, dtype
from graphml.ir.op import Array, Attributes, Op, Sample, Type, integer, text
from graphml.ir.ops.linear import decode, encode
from graphml.ir.ops.rows_by_number import inside, rows_at, written, zero_outside
from graphml.ir.ops.rules import ROWS, below, distinct_or_outside, f32, i32, partly_below, want_dtype
from graphml.ir.shape import fixed


def _infer_get_rows(inputs: Sequence[Type], attributes: Attributes) -> Type:
    table, rows = inputs
    want_dtype(rows, I32, "row indices")
    if len(table.shape) < 2:
        raise ShapeError(f"wanted a table [rows, ...]; got {table} and indices {rows}")
    return Type(F32, (*rows.shape, *table.shape[1:]))


def _get_rows(inputs: Sequence[Array], attributes: Attributes) -> Array:
    """Rows of a table [n, ...] at indices [T, ...], as f32; zeros for an index outside 0 to n - 1."""
    rows, known = rows_at(*inputs)
    return zero_outside(decode(rows, dtype(text(attributes, "from_dtype"))), known)


def _infer_set_rows(inputs: Sequence[Type], attributes: Attributes) -> Type:
    state, x, rows = inputs
    want_dtype(x, F32, "x")
    want_dtype(rows, I32, "row indices")
    if state.shape[1:] != x.shape[1:] or rows.shape != x.shape[:1]:
        raise ShapeError(
            f"wanted a state [cell, ...], x [T, ...] alike and indices [T]; got {state}, {x}, {rows}"
        )
    if state.dtype.is_format and state.dtype.name != text(attributes, "to_dtype"):
        raise ShapeError(f"to_dtype is {attributes['to_dtype']}; the state is {state}")
    return state


def _set_rows(inputs: Sequence[Array], attributes: Attributes) -> Array:
    """state [n, ...] at rows [T] = x [T, ...]; rows outside 0 to n - 1 are left out, the last of equals wins.

    distinct: the caller's promise that no two rows inside are equal, with which kernels do not look for them.
    """
    state, x, rows = inputs
    chosen = written(rows, len(state))
    x, rows = x[chosen], rows[chosen]
    try:
        state[rows] = encode(x, dtype(text(attributes, "to_dtype"))) if state.dtype == np.uint8 else x
    except graphml_quant.FormatError as error:
        raise GraphError(f"[set_rows] {error}") from None
    return state


def _infer_gather(inputs: Sequence[Type], attributes: Attributes) -> Type:
    x, ids = inputs
    want_dtype(ids, I32, "ids")
    if len(x.shape) != 2 or len(ids.shape) != 2 or x.shape[0] != ids.shape[0]:
        raise ShapeError(f"wanted x [T, n] and ids [T, k]; got {x} and {ids}")
    return Type(x.dtype, ids.shape)


def _gather(inputs: Sequence[Array], attributes: Attributes) -> Array:
    """X [T, n] at ids [T, k] of each row; 0 for an id outside 0 to n - 1."""
    x, ids = inputs
    known = inside(ids, x.shape[-1])
    return zero_outside(np.take_along_axis(x, np.where(known, ids, 0), axis=-1), known)


def _infer_top_k(inputs: Sequence[Type], attributes: Attributes) -> Type:
    x, k = inputs[0], integer(attributes, "k")
    want_dtype(x, F32, "x")
    if not 0 < k <= fixed(x.shape[-1]):
        raise ShapeError(f"wanted k between 1 and the last dimension of {x}; got {k}")
    return Type(I32, (*x.shape[:-1], k))


def _top_k(inputs: Sequence[Array], attributes: Attributes) -> Array:
    order = np.argsort(-inputs[0], axis=-1, kind="stable")
    return np.ascontiguousarray(order[..., : integer(attributes, "k")], dtype=np.int32)


def _infer_top_k_groups(inputs: Sequence[Type], attributes: Attributes) -> Type:
    x, groups, used = inputs[0], integer(attributes, "n_group"), integer(attributes, "n_group_used")
    want_dtype(x, F32, "x")
    if groups < 1 or fixed(x.shape[-1]) % groups or fixed(x.shape[-1]) < 2 * groups:
        raise ShapeError(f"wanted {groups} equal groups of at least 2 elements in the last dimension of {x}")
    if not 0 < used <= groups:
        raise ShapeError(f"wanted n_group_used between 1 and {groups}; got {used}")
    return x


def _top_k_groups(inputs: Sequence[Array], attributes: Attributes) -> Array:
    """DeepSeek-V3 (2024, arXiv:2412.19437): a group's score is the sum of its two largest elements."""
    x, used = inputs[0], integer(attributes, "n_group_used")
    groups = x.reshape(*x.shape[:-1], integer(attributes, "n_group"), -1)
    largest = np.sort(groups, axis=-1)[..., -2:]
    order = np.argsort(-(largest[..., 1] + largest[..., 0]), axis=-1, kind="stable")
    kept = np.zeros(groups.shape[:-1], bool)
    np.put_along_axis(kept, order[..., :used], True, axis=-1)
    return np.where(kept[..., None], groups, np.float32(-np.inf)).reshape(x.shape)


def _infer_column_numbers(inputs: Sequence[Type], attributes: Attributes) -> Type:
    count = integer(attributes, "n")
    if count < 1 or integer(attributes, "each") < 1:
        raise ShapeError(f"wanted n and each above 0; got {dict(attributes)}")
    return Type(I32, (inputs[0].shape[0], count))


def _column_numbers(inputs: Sequence[Array], attributes: Attributes) -> Array:
    count = integer(attributes, "n")
    return np.tile(
        np.arange(count, dtype=np.int32) // np.int32(integer(attributes, "each")), (inputs[0].shape[0], 1)
    )


get_rows = Op("get_rows", "index", infer=_infer_get_rows, reference=_get_rows,
              samples=lambda: [Sample((f32(11, *row), ids), {}, {1: below(11)})
                               for row in ((8,), (65,), (3, 5), (1,)) for ids in (i32(ROWS), i32(ROWS, 2))]
              + [Sample((f32(11, 64), i32(ROWS, 2)), {}, {1: partly_below(11)})],
              attributes={"from_dtype": "f32"}, rowwise=(1,), reads=(0,))  # fmt: skip
set_rows = Op("set_rows", "index", infer=_infer_set_rows, reference=_set_rows,
              samples=lambda: [Sample((f32(15, 3, n), f32(ROWS, 3, n), i32(ROWS)), {"distinct": promised},
                                      {2: distinct_or_outside if promised else partly_below(6)})
                              for n, promised in ((16, True), (64, False), (64, True), (256, False))],
              attributes={"to_dtype": "f32", "distinct": False}, writes=0)  # fmt: skip
gather = Op("gather", "index", infer=_infer_gather, reference=_gather, rowwise=(0, 1),
            samples=lambda: [Sample((f32(ROWS, 12), i32(ROWS, 3)), {}, {1: fill})
                             for fill in (below(12), partly_below(12))])  # fmt: skip
top_k = Op("top_k", "index", infer=_infer_top_k, reference=_top_k,
           samples=lambda: [Sample((f32(ROWS, 12),), {"k": 3}), Sample((f32(ROWS, 128),), {"k": 8})],
           attributes={"k": None}, rowwise=(0,))  # fmt: skip
top_k_groups = Op("top_k_groups", "index", infer=_infer_top_k_groups, reference=_top_k_groups,
                 samples=lambda: [Sample((f32(ROWS, n),), {"n_group": groups, "n_group_used": used})
                                  for n, groups, used in ((12, 3, 2), (256, 8, 4), (4, 1, 1))],
                 attributes={"n_group": None, "n_group_used": None}, rowwise=(0,))  # fmt: skip
column_numbers = Op("column_numbers", "index", infer=_infer_column_numbers, reference=_column_numbers,
                    samples=lambda: [Sample((i32(ROWS),), {"n": n, "each": each})
                                     for n, each in ((1, 1), (5, 1), (128, 1), (12, 4))],
                    attributes={"n": None, "each": 1}, rowwise=(0,))  # fmt: skip
