"""Sparse attention: a small index of the text selects the positions that a token attends to.

Positions are grouped into blocks of equal size, which may be 1. `select_blocks` scores the visible positions
by small queries and keys and returns the top blocks; `selected_attention` attends to those. Lightning
indexer: DeepSeek-V3.2 (2025, arXiv:2512.02556). Blocks, some of them forced: MiniMax-M3 (2026).

Indices outside are as in `attention`: a sequence without a row in the block table sees nothing, and a cell
outside the cache is a key and a value of zeros. A block of positions that no token sees is chosen by none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphml.errors import GraphError, ShapeError
from graphml.ir.dtype import F32, I32
from graphml.ir.op import Array, Attributes, Fill, Op, Sample, Type, integer, number
from graphml.ir.ops.attention import cells_of, plain_cache, plain_caches, want_caches, want_sinks, want_step
from graphml.ir.ops.rows_by_number import rows_at, zero_outside
from graphml.ir.ops.rules import ROWS, below, f32, i32, partly_below, want_dtype
from graphml.ir.shape import bound


def _infer_select(inputs: Sequence[Type], attributes: Attributes) -> Type:
    q, k, positions, sequences, table, *weights = inputs
    want_step(q, positions, sequences, table)
    if len(q.shape) != 3 or len(k.shape) != 3 or q.shape[2] != k.shape[2] or k.shape[1] != 1:
        raise ShapeError(f"wanted q [T, head, d] and a k cache [cell, 1, d]; got {q}, {k}")
    for factors in weights:
        want_dtype(factors, F32, "weights")
        if factors.shape != q.shape[:2]:
            raise ShapeError(f"wanted a weight for each head of {q}; got {factors}")
    if min(integer(attributes, name) for name in ("n", "selection_block", "block_size")) < 1:
        raise GraphError(f"wanted n, selection_block and block_size above 0; got {dict(attributes)}")
    return Type(I32, (q.shape[0], 1 if weights else q.shape[1], integer(attributes, "n")))


def count_seen(position: int, sequence: int, table: Array, attributes: Attributes) -> int:
    """How many positions a token sees, from the first on."""
    room = table.shape[1] * integer(attributes, "block_size")
    return max(0, min(position + 1, room)) if 0 <= sequence < len(table) else 0


def _select(inputs: Sequence[Array], attributes: Attributes) -> Array:
    """In float64. With weights a position's score is the weighted sum of its heads' scores above 0."""
    q, k, positions, sequences, table, *weights = inputs
    k = plain_cache(k, attributes, "k_dtype")
    n, size, local = (integer(attributes, name) for name in ("n", "selection_block", "local"))
    y = np.full((q.shape[0], 1 if weights else q.shape[1], n), -1, np.int32)
    for t, (position, sequence) in enumerate(zip(positions.tolist(), sequences.tolist(), strict=True)):
        n_seen = count_seen(position, sequence, table, attributes)
        if not n_seen:
            continue
        cells = cells_of(np.arange(n_seen), table[sequence], integer(attributes, "block_size"))
        keys = zero_outside(*rows_at(k[:, 0], cells)).astype(np.float64)
        score = q[t].astype(np.float64) @ keys.T
        if weights:
            score = weights[0][t].astype(np.float64)[None] @ np.maximum(score, 0.0)
        highest = np.maximum.reduceat(score, np.arange(0, n_seen, size), axis=1)
        highest[:, max(0, highest.shape[1] - local) :] = np.inf
        order = np.argsort(-highest, axis=1, kind="stable")[:, :n]
        y[t, :, : order.shape[1]] = order
    return y


def _infer_attend(inputs: Sequence[Type], attributes: Attributes) -> Type:
    q, k, v, positions, sequences, table, selected, *sinks = inputs
    want_step(q, positions, sequences, table)
    want_dtype(selected, I32, "selected")
    want_caches(q, k, v)
    heads, groups = bound(q.shape[1]), bound(selected.shape[1])
    if heads % bound(k.shape[1]) or selected.shape[0] != q.shape[0] or heads % groups:
        raise ShapeError(f"wanted a choice [T, G, n] for G equal parts of {heads} heads; got {selected}")
    for sinks_of_heads in sinks:
        want_sinks(q, sinks_of_heads)
    return Type(F32, (q.shape[0], q.shape[1], v.shape[2]))


def _attend(inputs: Sequence[Array], attributes: Attributes) -> Array:
    """Softmax over the visible positions of the chosen blocks, in float64."""
    q, _, _, positions, sequences, table, selected, *sinks = inputs
    k, v = plain_caches(inputs, attributes)
    size, scale, n_head = integer(attributes, "selection_block"), number(attributes, "scale"), q.shape[1]
    each, kv_each = n_head // selected.shape[1], n_head // k.shape[1]
    y = np.zeros((q.shape[0], n_head, v.shape[2]), np.float32)
    for t, (position, sequence) in enumerate(zip(positions.tolist(), sequences.tolist(), strict=True)):
        n_seen = count_seen(position, sequence, table, attributes)
        chosen = [_chosen(blocks, size, n_seen) for blocks in selected[t]]
        for head in range(n_head):
            seen = chosen[head // each]
            if not len(seen):
                continue
            cells = cells_of(seen, table[sequence], integer(attributes, "block_size"))
            of_head = (cache[:, head // kv_each] for cache in (k, v))
            keys, values = (zero_outside(*rows_at(cache, cells)).astype(np.float64) for cache in of_head)
            score = keys @ q[t, head].astype(np.float64) * scale
            every = np.append(score, sinks[0][head]) if sinks else score
            weight = np.exp(every - every.max())
            y[t, head] = weight[: len(score)] / weight.sum() @ values
    return y


def _chosen(blocks: Array, size: int, n_seen: int) -> Array:
    """The positions of chosen blocks that are among the first `n_seen`, ascending."""
    kept = np.unique(blocks).astype(np.int64)
    seen = (kept[kept >= 0, None] * size + np.arange(size)).reshape(-1)
    return np.asarray(seen[seen < n_seen])


_CELLS, _BLOCKS = 64, 8


def _select_samples() -> list[Sample]:
    def call(n_head: int, d: int, weighted: bool, **attributes: int) -> Sample:
        inputs = (f32(ROWS, n_head, d), f32(_CELLS, 1, d), i32(ROWS), i32(ROWS), i32(2, _BLOCKS))
        fill = {2: below(40), 3: below(2), 4: _blocks}
        return Sample((*inputs, f32(ROWS, n_head)) if weighted else inputs,
                      {"block_size": 8, **attributes}, fill)  # fmt: skip

    fewer = call(2, 32, False, n=3, selection_block=4, local=1)
    return [
        call(4, 16, True, n=6),
        fewer,
        call(1, 20, True, n=64),
        Sample(fewer.inputs, fewer.attributes, {**fewer.fill, 2: partly_below(40), 3: partly_below(2)}),
    ]


def _attend_samples() -> list[Sample]:
    def call(n_head: int, n_head_kv: int, groups: int, sunk: bool, selection_block: int) -> Sample:
        inputs = (f32(ROWS, n_head, 16), f32(_CELLS, n_head_kv, 16), f32(_CELLS, n_head_kv, 16), i32(ROWS),
                  i32(ROWS), i32(2, _BLOCKS), i32(ROWS, groups, 5))  # fmt: skip
        fill = {3: below(40), 4: below(2), 5: below(_BLOCKS), 6: _choice}
        return Sample((*inputs, f32(n_head)) if sunk else inputs,
                      {"scale": 0.25, "block_size": 8, "selection_block": selection_block}, fill)  # fmt: skip

    usual = [call(4, 1, 1, True, 1), call(4, 2, 2, False, 4), call(2, 2, 1, False, 8)]
    astray: dict[int, Fill] = {3: partly_below(40), 4: partly_below(2), 5: partly_below(_BLOCKS)}
    return [*usual, Sample(usual[1].inputs, usual[1].attributes, {**usual[1].fill, **astray, 6: _astray})]


def _blocks(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Each block once in a sequence: the order of two equal keys would depend on rounding."""
    return np.stack([generator.permutation(shape[1]) for _ in range(shape[0])]).astype(np.int32)


def _choice(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Blocks, the first of them always among them; -1 where there are fewer."""
    chosen = generator.integers(-1, 6, shape).astype(np.int32)
    chosen[..., 0] = 0
    return chosen


def _astray(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Blocks of which one is far behind every position."""
    chosen = _choice(generator, shape)
    chosen[..., 1] = (1 << 31) - 1
    return chosen


select_blocks = Op("select_blocks", "attention", infer=_infer_select, reference=_select,
                  samples=_select_samples, reads=(1,),
                  attributes={"n": None, "selection_block": 1, "local": 0, "block_size": 32,
                              "k_dtype": "f32"})  # fmt: skip
selected_attention = Op("selected_attention", "attention", infer=_infer_attend, reference=_attend,
                        samples=_attend_samples, reads=(1, 2),
                        attributes={"scale": None, "selection_block": 1, "block_size": 32,
                                    "k_dtype": "f32", "v_dtype": "f32"})  # fmt: skip
