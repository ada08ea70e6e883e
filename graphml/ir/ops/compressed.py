"""Compressed attention (DeepSeek-V4, 2026): a token sees a window, and before it one row for each group.

Each `ratio` positions of a text, from the first on, are a group. `compress_rows` makes the row of a group
where its last token is, `select_compressed` selects groups by an index of small keys, and
`compressed_attention` attends to a window of keys and to the groups whose tokens are all there. A group's row
lies in the cell of its last token. The values are the keys.

Indices outside are as in `attention`: a sequence without a row in the block table sees nothing, and a cell
outside the cache is a row of zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphml.errors import GraphError, ShapeError
from graphml.ir.dtype import F32, I32
from graphml.ir.op import Array, Attributes, Op, Sample, Type, integer, number
from graphml.ir.ops.attention import cells_of, plain_cache, want_sinks, want_step
from graphml.ir.ops.rows_by_number import rows_at, zero_outside
from graphml.ir.ops.rules import ROWS, below, f32, i32, partly_below, want_dtype
from graphml.ir.ops.sparse import count_seen
from graphml.ir.shape import fixed


def _want_above_0(attributes: Attributes, *names: str) -> None:
    if min(integer(attributes, name) for name in (*names, "block_size")) < 1:
        raise GraphError(f"wanted {', '.join(names)} and block_size above 0; got {dict(attributes)}")


def _infer_compress(inputs: Sequence[Type], attributes: Attributes) -> Type:
    rows, scores, bias, positions, sequences, table = inputs
    want_step(Type(F32, positions.shape), positions, sequences, table)
    _want_above_0(attributes, "ratio")
    if integer(attributes, "overlaps") not in (0, 1):
        raise GraphError(f"wanted overlaps of 0 or 1; got {integer(attributes, 'overlaps')}")
    width, halves = fixed(rows.shape[-1]), 1 + integer(attributes, "overlaps")
    for cache, role in ((rows, "rows"), (scores, "scores"), (bias, "bias")):
        want_dtype(cache, F32, role)
    if len(rows.shape) != 3 or rows.shape[1] != 1 or scores.shape != rows.shape or width % halves:
        raise ShapeError(f"wanted caches [cell, 1, {halves} * d] of rows and scores; got {rows}, {scores}")
    if bias.shape != (integer(attributes, "ratio"), width):
        raise ShapeError(f"wanted a bias [{integer(attributes, 'ratio')}, {width}]; got {bias}")
    return Type(F32, (positions.shape[0], width // halves))


def _compress(inputs: Sequence[Array], attributes: Attributes) -> Array:
    """In float64: for each column the mean of a group's rows, weighted by the softmax of their scores.

    Where groups overlap, a group's rows are the second halves of its own and the first of those before it.
    """
    rows, scores, bias, positions, sequences, table = inputs
    ratio, overlaps = integer(attributes, "ratio"), integer(attributes, "overlaps")
    y = np.zeros((len(positions), rows.shape[2] // (1 + overlaps)), np.float32)
    for t, (position, sequence) in enumerate(zip(positions.tolist(), sequences.tolist(), strict=True)):
        if (position + 1) % ratio or not 0 <= position < count_seen(position, sequence, table, attributes):
            continue
        n_before = ratio if overlaps and position >= ratio else 0
        seen = np.arange(position + 1 - ratio - n_before, position + 1)
        cells = cells_of(seen, table[sequence], integer(attributes, "block_size"))
        values, weights = (zero_outside(*rows_at(x[:, 0], cells)).astype(np.float64) for x in (rows, scores))
        weights += bias[seen % ratio]
        if overlaps:
            own = seen >= position + 1 - ratio
            values, weights = (np.where(own[:, None], *np.hsplit(x, 2)[::-1]) for x in (values, weights))
        weights = np.exp(weights - weights.max(axis=0))
        y[t] = (weights / weights.sum(axis=0) * values).sum(axis=0)
    return y


def _infer_select(inputs: Sequence[Type], attributes: Attributes) -> Type:
    q, k, positions, sequences, table, weights = inputs
    want_step(q, positions, sequences, table)
    _want_above_0(attributes, "n", "ratio")
    if len(q.shape) != 3 or len(k.shape) != 3 or q.shape[2] != k.shape[2] or k.shape[1] != 1:
        raise ShapeError(f"wanted q [T, head, d] and a k cache [cell, 1, d]; got {q}, {k}")
    want_dtype(weights, F32, "weights")
    if weights.shape != q.shape[:2]:
        raise ShapeError(f"wanted a weight for each head of {q}; got {weights}")
    return Type(I32, (q.shape[0], integer(attributes, "n")))


def _select(inputs: Sequence[Array], attributes: Attributes) -> Array:
    """In float64; a group's score is the weighted sum of its heads' scores above 0, of equals the first."""
    q, k, positions, sequences, table, weights = inputs
    k = plain_cache(k, attributes, "k_dtype")
    y = np.full((len(q), integer(attributes, "n")), -1, np.int32)
    for t, (position, sequence) in enumerate(zip(positions.tolist(), sequences.tolist(), strict=True)):
        groups = np.arange(_n_groups(position, sequence, table, attributes))
        if not len(groups):
            continue
        scores = np.maximum(q[t].astype(np.float64) @ _rows_of(groups, k, table[sequence], attributes).T, 0.0)
        order = np.argsort(-(weights[t].astype(np.float64) @ scores), kind="stable")[: y.shape[1]]
        y[t, : len(order)] = order
    return y


def _n_groups(position: int, sequence: int, table: Array, attributes: Attributes) -> int:
    """How many groups a token sees: those whose last token is not behind it."""
    return count_seen(position, sequence, table, attributes) // integer(attributes, "ratio")


def _rows_of(groups: Array, cache: Array, blocks: Array, attributes: Attributes) -> Array:
    """The rows of groups, float64; blocks: of a sequence."""
    last = (groups + 1) * integer(attributes, "ratio") - 1
    cells = cells_of(last, blocks, integer(attributes, "block_size"))
    return zero_outside(*rows_at(cache[:, 0], cells)).astype(np.float64)


def _infer_attend(inputs: Sequence[Type], attributes: Attributes) -> Type:
    q, k, groups, positions, sequences, k_table, table, sinks, *selected = inputs
    for blocks in (k_table, table):
        want_step(q, positions, sequences, blocks)
    _want_above_0(attributes, "window", "ratio")
    for cache in (k, groups):
        if len(q.shape) != 3 or len(cache.shape) != 3 or cache.shape[1:] != (1, q.shape[2]):
            raise ShapeError(f"wanted q [T, head, d] and caches [cell, 1, d]; got {q}, {cache}")
    want_sinks(q, sinks)
    for groups in selected:
        want_dtype(groups, I32, "selected")
        if len(groups.shape) != 2 or groups.shape[0] != q.shape[0]:
            raise ShapeError(f"wanted selected groups [T, n] for q {q}; got {groups}")
    return q


def _attend(inputs: Sequence[Array], attributes: Attributes) -> Array:
    """Softmax over the last `window` positions, and groups: the selected or all, in float64."""
    q, k, rows, positions, sequences, k_table, table, sinks, *selected = inputs
    k, rows = (plain_cache(cache, attributes, "k_dtype") for cache in (k, rows))
    y = np.zeros(q.shape, np.float32)
    for t, (position, sequence) in enumerate(zip(positions.tolist(), sequences.tolist(), strict=True)):
        n_seen = count_seen(position, sequence, k_table, attributes)
        n_groups = _n_groups(position, sequence, table, attributes)
        if not n_seen:
            continue
        seen = np.arange(max(0, position + 1 - integer(attributes, "window")), n_seen)
        cells = cells_of(seen, k_table[sequence], integer(attributes, "block_size"))
        near = zero_outside(*rows_at(k[:, 0], cells)).astype(np.float64)
        groups = np.unique(selected[0][t]).astype(np.int64) if selected else np.arange(n_groups)
        groups = groups[(groups >= 0) & (groups < n_groups)]
        keys = np.concatenate([near, _rows_of(groups, rows, table[sequence], attributes)])
        scores = q[t].astype(np.float64) @ keys.T * number(attributes, "scale")
        every = np.concatenate([scores, sinks[:, None]], axis=1)
        weights = np.exp(every - every.max(axis=1, keepdims=True))
        y[t] = (weights / weights.sum(axis=1, keepdims=True))[:, :-1] @ keys
    return y


_CELLS, _BLOCKS = 64, 8


def _compress_samples() -> list[Sample]:
    def call(ratio: int, width: int, overlaps: int, fits: bool = True) -> Sample:
        inputs = (f32(_CELLS, 1, width), f32(_CELLS, 1, width), f32(ratio, width), i32(ROWS), i32(ROWS),
                  i32(2, _BLOCKS))  # fmt: skip
        index = below if fits else partly_below
        fill = {3: index(12), 4: index(2), 5: index(_BLOCKS)}
        return Sample(inputs, {"ratio": ratio, "overlaps": overlaps, "block_size": 8}, fill)

    return [call(2, 16, 0), call(2, 20, 1), call(1, 6, 1), call(2, 8, 1, False)]


def _select_samples() -> list[Sample]:
    def call(n_head: int, d: int, n: int, fits: bool = True) -> Sample:
        inputs = (f32(ROWS, n_head, d), f32(_CELLS, 1, d), i32(ROWS), i32(ROWS), i32(2, _BLOCKS),
                  f32(ROWS, n_head))  # fmt: skip
        index = below if fits else partly_below
        return Sample(inputs, {"n": n, "ratio": 4, "block_size": 8},
                      {2: index(40), 3: index(2), 4: _each_once})  # fmt: skip

    return [call(16, 16, 3), call(20, 12, 64), call(16, 8, 2, False)]


def _attend_samples() -> list[Sample]:
    def call(n_head: int, d: int, n: int, fits: bool = True) -> Sample:
        inputs = (f32(ROWS, n_head, d), f32(_CELLS, 1, d), f32(_CELLS, 1, d), i32(ROWS), i32(ROWS),
                  i32(2, _BLOCKS), i32(2, _BLOCKS), f32(n_head))  # fmt: skip
        index = below if fits else partly_below
        fill = {3: index(40), 4: index(2), 5: index(_BLOCKS), 6: index(_BLOCKS), 8: index(12)}
        chosen = (i32(ROWS, n),) if n else ()
        return Sample((*inputs, *chosen), {"scale": 0.25, "window": 5, "ratio": 4, "block_size": 8},
                      {i: maker for i, maker in fill.items() if i < 8 or n})  # fmt: skip

    return [call(4, 16, 0), call(3, 20, 4), call(2, 8, 3, False)]


def _each_once(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Each block once in a sequence: the order of two equal keys would depend on rounding."""
    return np.stack([generator.permutation(shape[1]) for _ in range(shape[0])]).astype(np.int32)


compress_rows = Op("compress_rows", "attention", infer=_infer_compress, reference=_compress,
                   samples=_compress_samples, reads=(0, 1),
                   attributes={"ratio": None, "overlaps": 0, "block_size": 32})  # fmt: skip
select_compressed = Op("select_compressed", "attention", infer=_infer_select, reference=_select,
                   samples=_select_samples, reads=(1,),
                   attributes={"n": None, "ratio": None, "block_size": 32, "k_dtype": "f32"})  # fmt: skip
compressed_attention = Op("compressed_attention", "attention", infer=_infer_attend, reference=_attend,
                          samples=_attend_samples, reads=(1, 2),
                          attributes={"scale": None, "window": None, "ratio": None, "block_size": 32,
                                      "k_dtype": "f32"})  # fmt: skip
