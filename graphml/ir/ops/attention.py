"""Paged attention (Kwon et al. 2023, arXiv:2309.06180): the only kind of attention in the graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphml.errors import ShapeError
from graphml.ir.dtype import F32, I32, dtype
from graphml.ir.op import Array, Attributes, Op, Sample, Type, integer, number, text
from graphml.ir.ops.linear import decode
from graphml.ir.ops.rules import ROWS, below, f32, i32, want_dtype
from graphml.ir.shape import bound


def _infer(inputs: Sequence[Type], attributes: Attributes) -> Type:
    q, k, v, positions, sequences, table = inputs[:6]
    want_dtype(q, F32, "q")
    for value, role in ((positions, "positions"), (sequences, "sequences"), (table, "block_table")):
        want_dtype(value, I32, role)
    if any(len(x.shape) != 3 for x in (q, k, v)) or q.shape[2] != k.shape[2] or k.shape[:2] != v.shape[:2]:
        raise ShapeError(
            "wanted q [T, head, d], k cache [cell, head_kv, d], v cache [cell, head_kv, d_v]; "
            f"got {q}, {k}, {v}"
        )
    if bound(q.shape[1]) % bound(k.shape[1]):
        raise ShapeError(f"wanted a multiple of the cache's {k.shape[1]} heads in q; got {q.shape[1]}")
    if positions.shape != q.shape[:1] or sequences.shape != q.shape[:1] or len(table.shape) != 2:
        raise ShapeError(
            f"wanted positions [T], sequences [T], block_table [S, B] for q {q}; "
            f"got {positions}, {sequences}, {table}"
        )
    if len(inputs) > 6 and inputs[6].shape != q.shape[1:2]:
        raise ShapeError(f"wanted one sink per head of {q}; got {inputs[6]}")
    return Type(F32, (q.shape[0], q.shape[1], v.shape[2]))


def alibi_slopes(n_head: int, max_bias: float) -> Array:
    """Slope of each head's distance penalty (Press et al. 2021, arXiv:2108.12409), as ggml has it."""
    if max_bias <= 0.0:
        return np.zeros(n_head)
    lower = 1 << (n_head.bit_length() - 1)
    head = np.arange(n_head)
    first = 2.0 ** (-max_bias / lower)
    second = 2.0 ** (-max_bias / 2.0 / lower)
    return np.asarray(np.where(head < lower, first ** (head + 1), second ** (2 * (head - lower) + 1)))


def attention_reference(inputs: Sequence[Array], attributes: Attributes) -> Array:
    """Softmax over the cells that a token may see, in float64."""
    q, k, v, positions, sequences, table = inputs[:6]
    block, window = integer(attributes, "block_size"), integer(attributes, "window")
    scale, softcap = number(attributes, "scale"), number(attributes, "softcap")
    n_head, group = q.shape[1], q.shape[1] // k.shape[1]
    slopes = alibi_slopes(n_head, number(attributes, "max_bias"))
    y = np.empty((q.shape[0], n_head, v.shape[2]), np.float32)
    for t, (position, sequence) in enumerate(zip(positions, sequences, strict=True)):
        first = max(0, position - window + 1) if window else 0
        seen = np.arange(first, position + 1)
        cells = table[sequence, seen // block].astype(np.int64) * block + seen % block
        keys = np.repeat(k[cells].astype(np.float64), group, axis=1)
        values = np.repeat(v[cells].astype(np.float64), group, axis=1)
        score = np.einsum("hd,chd->hc", q[t].astype(np.float64), keys) * scale
        if softcap:
            score = softcap * np.tanh(score / softcap)
        score += slopes[:, None] * (seen - position)
        top = score.max(axis=1, keepdims=True)
        if len(inputs) > 6:
            top = np.maximum(top, inputs[6][:, None])
        weight = np.exp(score - top)
        total = weight.sum(axis=1, keepdims=True)
        if len(inputs) > 6:
            total += np.exp(inputs[6][:, None] - top)
        y[t] = np.einsum("hc,chd->hd", weight / total, values)
    return y


def _reference(inputs: Sequence[Array], attributes: Attributes) -> Array:
    cache = dtype(text(attributes, "cache_dtype"))
    wide = [decode(x, cache) if x.dtype == np.uint8 else x for x in inputs[1:3]]
    return attention_reference([inputs[0], *wide, *inputs[3:]], attributes)


def _samples() -> list[Sample]:
    def call(n_head: int, n_head_kv: int, d: int, **attributes: float) -> Sample:
        cells, blocks = 64, 8
        inputs = (f32(ROWS, n_head, d), f32(cells, n_head_kv, d), f32(cells, n_head_kv, d),
                  i32(ROWS), i32(ROWS), i32(2, blocks))  # fmt: skip
        fill = {3: below(40), 4: below(2), 5: below(blocks)}
        return Sample(inputs, {"scale": d**-0.5, "block_size": 8, **attributes}, fill)

    return [call(4, 4, 32), call(9, 3, 64), call(8, 1, 20), call(4, 2, 16, window=7),
            call(4, 2, 16, softcap=5.0), call(6, 2, 16, max_bias=8.0)]  # fmt: skip


attention = Op(
    "attention",
    "attention",
    infer=_infer,
    reference=_reference,
    samples=_samples,
    attributes={
        "scale": None,
        "block_size": 32,
        "window": 0,
        "softcap": 0.0,
        "max_bias": 0.0,
        "cache_dtype": "f32",
    },
)
