"""Paged attention (Kwon et al. 2023, arXiv:2309.06180): the only kind of attention in the graph.

A token sees positions that its row of the block table has room for. One whose sequence is outside the table's
rows (negative ones are) sees nothing, and a cell outside the cache reads as a key and a value of zeros.
`product_dtype` "bf16" lets a backend round queries, keys, values and weights to bfloat16; sums are float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from graphml.errors import GraphError, ShapeError
from graphml.ir.dtype import F32, I32, dtype
from graphml.ir.op import Array, Attributes, Fill, Op, Sample, Type, integer, number, text
from graphml.ir.ops.linear import decode
from graphml.ir.ops.rows_by_number import rows_at, zero_outside
from graphml.ir.ops.rules import ROWS, below, f32, i32, partly_below, want_dtype
from graphml.ir.shape import bound

Operand = TypeVar("Operand")


def extras(inputs: Sequence[Operand], attributes: Attributes) -> tuple[Operand | None, Operand | None]:
    """The operands after the six mandatory ones: sinks [head], if any, and lengths [S], if any."""
    rest = list(inputs[6:])
    lengths = None if causal(attributes) or not rest else rest.pop()
    return (rest[0] if rest else None), lengths


def causal(attributes: Attributes) -> bool:
    """Whether no token attends to later ones."""
    return bool(attributes["causal"])


def reach(attributes: Attributes) -> int:
    """The positions that a window reaches back, and ahead if attention is not causal."""
    window = integer(attributes, "window")
    return window - 1 if causal(attributes) else window // 2


def want_step(q: Type, positions: Type, sequences: Type, table: Type) -> None:
    """ShapeError for other types than those of queries and of the inputs of a step."""
    want_dtype(q, F32, "q")
    for value, role in ((positions, "positions"), (sequences, "sequences"), (table, "block_table")):
        want_dtype(value, I32, role)
    if positions.shape != q.shape[:1] or sequences.shape != q.shape[:1] or len(table.shape) != 2:
        raise ShapeError(
            f"wanted positions [T], sequences [T], block_table [S, B] for q {q}; "
            f"got {positions}, {sequences}, {table}"
        )


def want_caches(q: Type, k: Type, v: Type) -> None:
    """ShapeError for queries and caches whose heads do not fit each other."""
    if any(len(x.shape) != 3 for x in (q, k, v)) or q.shape[2] != k.shape[2] or k.shape[:2] != v.shape[:2]:
        raise ShapeError(
            "wanted q [T, head, d], k cache [cell, head_kv, d], v cache [cell, head_kv, d_v]; "
            f"got {q}, {k}, {v}"
        )


def want_sinks(q: Type, sinks: Type) -> None:
    """ShapeError for other sinks than f32, one for each head of the queries."""
    want_dtype(sinks, F32, "sinks")
    if sinks.shape != q.shape[1:2]:
        raise ShapeError(f"wanted one sink per head of {q}; got {sinks}")


def _infer(inputs: Sequence[Type], attributes: Attributes) -> Type:
    q, k, v, positions, sequences, table = inputs[:6]
    want_step(q, positions, sequences, table)
    want_caches(q, k, v)
    if bound(q.shape[1]) % bound(k.shape[1]):
        raise ShapeError(f"wanted a multiple of the cache's {k.shape[1]} heads in q; got {q.shape[1]}")
    sinks, lengths = extras(inputs, attributes)
    if sinks is not None:
        want_sinks(q, sinks)
    if not causal(attributes) and (lengths is None or lengths != Type(I32, table.shape[:1])):
        raise ShapeError(f"wanted the lengths [S] of the sequences of block_table {table}; got {lengths}")
    window, chunk = integer(attributes, "window"), integer(attributes, "chunk")
    if min(window, chunk) < 0 or (chunk and (window or not causal(attributes))):
        raise GraphError(
            f"wanted a window, or if causal a chunk, of 0 or more tokens; got {window} and {chunk}"
        )
    if text(attributes, "product_dtype") not in ("f32", "bf16"):
        raise GraphError(f"wanted products of f32 or bf16; got {attributes['product_dtype']!r}")
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


def first_seen(position: int, attributes: Attributes) -> int:
    """The first visible position of a token: the first of all, of the last `window`, or of its `chunk`."""
    window, chunk = integer(attributes, "window"), integer(attributes, "chunk")
    if chunk:
        return max(0, position // chunk * chunk)
    return max(0, position - reach(attributes)) if window else 0


def attention_reference(
    inputs: Sequence[Array],
    attributes: Attributes,
    bias: Callable[[int, Array], Array] | None = None,
) -> Array:
    """Softmax over the visible cells of a token, in float64; zeros if there are none.

    bias: a token's position and its visible positions -> the summand of their scores, [head, n].
    """
    q, k, v, positions, sequences, table = inputs[:6]
    sinks, lengths = extras(inputs, attributes)
    block = integer(attributes, "block_size")
    grouped = (k.shape[1], q.shape[1] // k.shape[1])  # heads of the cache, and of q for each
    slopes = alibi_slopes(q.shape[1], number(attributes, "max_bias")).reshape(*grouped, 1)
    y = np.zeros((q.shape[0], *grouped, v.shape[2]), np.float32)
    wide = q.reshape(q.shape[0], *grouped, q.shape[2]).astype(np.float64)
    for sequence, tokens in _tokens(sequences).items():
        if not 0 <= sequence < len(table):
            continue
        length = None if lengths is None else int(lengths[sequence])
        room = table.shape[1] * block
        spans = {t: span for t in tokens if len(span := _seen(int(positions[t]), length, room, attributes))}
        if not spans:
            continue
        seen = _any_of(spans.values())
        cells = cells_of(seen, table[sequence], block)
        keys, values = (zero_outside(*rows_at(cache, cells)).astype(np.float64) for cache in (k, v))
        for t, span in spans.items():
            at = int(seen.searchsorted(span.start))
            own = slice(at, at + len(span))
            score = _scores(wide[t], keys[own], attributes)
            if slopes.any():
                score -= slopes * np.abs(seen[own] - positions[t])
            if bias is not None:
                score += bias(int(positions[t]), seen[own]).reshape(score.shape)
            weight = _softmax(score, None if sinks is None else sinks.reshape(*grouped, 1))
            y[t] = np.einsum("gjc,cgd->gjd", weight, values[own])
    return y.reshape(q.shape[0], q.shape[1], v.shape[2])


def cells_of(positions: Array, blocks: Array, block_size: int) -> Array:
    """The cells of positions of a sequence, int64; blocks: its row of the block table."""
    return np.asarray(blocks[positions // block_size].astype(np.int64) * block_size + positions % block_size)


def _tokens(sequences: Array) -> dict[int, list[int]]:
    """The tokens of each sequence."""
    tokens: dict[int, list[int]] = {}
    for t, sequence in enumerate(sequences.tolist()):
        tokens.setdefault(sequence, []).append(t)
    return tokens


def _any_of(spans: Iterable[range]) -> Array:
    """The positions in any of the spans, ascending; between them are blocks that are gone."""
    runs: list[range] = []
    for span in sorted(spans, key=lambda span: span.start):
        if runs and span.start <= runs[-1].stop:
            runs[-1] = range(runs[-1].start, max(runs[-1].stop, span.stop))
        else:
            runs.append(span)
    return np.concatenate([np.arange(run.start, run.stop) for run in runs])


def _scores(q: Array, keys: Array, attributes: Attributes) -> Array:
    """The scores of a token: q [group, head, d] and keys [n, group, d] -> [group, head, n]."""
    softcap = number(attributes, "softcap")
    score: Array = np.einsum("gjd,cgd->gjc", q, keys) * number(attributes, "scale")
    return softcap * np.tanh(score / softcap) if softcap else score


def _softmax(score: Array, sinks: Array | None) -> Array:
    """Of the last dimension; sinks: one more score each, which takes its share."""
    top = np.maximum.reduce(score, axis=-1, keepdims=True)
    if sinks is not None:
        top = np.maximum(top, sinks)
    weight = np.exp(score - top)
    total = np.add.reduce(weight, axis=-1, keepdims=True)
    if sinks is not None:
        total += np.exp(sinks - top)
    return np.asarray(weight / total)


def plain_caches(inputs: Sequence[Array], attributes: Attributes) -> tuple[Array, Array]:
    """Keys and values, the second and third operand, as plain numbers."""
    k, v = inputs[1:3]
    return plain_cache(k, attributes, "k_dtype"), plain_cache(v, attributes, "v_dtype")


def plain_cache(cache: Array, attributes: Attributes, stored_as: str) -> Array:
    """A cache as plain numbers, of the type that the attribute `stored_as` names."""
    return decode(cache, dtype(text(attributes, stored_as))) if cache.dtype == np.uint8 else cache


def _seen(position: int, length: int | None, room: int, attributes: Attributes) -> range:
    """The visible positions of a token; length: of its sequence, None for causal attention.

    room: the positions that a row of the block table has cells for.
    """
    end = min(room, position + 1 if length is None else length)
    if length is not None and integer(attributes, "window"):
        end = min(end, position + reach(attributes) + 1)
    return range(first_seen(position, attributes), end)


def _reference(inputs: Sequence[Array], attributes: Attributes) -> Array:
    return attention_reference([inputs[0], *plain_caches(inputs, attributes), *inputs[3:]], attributes)


def more_than_positions(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """More than any position of the samples, fewer than their cells."""
    return generator.integers(40, 64, shape, dtype=np.int32)


def _alike(positions: int, blocks: int) -> Sample:
    """A token each of sequences that have all of their blocks in common, behind the first chunk of them."""
    inputs = (f32(ROWS, 9, 64), f32(8 * blocks, 3, 64), f32(8 * blocks, 3, 64), i32(ROWS), i32(ROWS),
              i32(ROWS.bound, blocks))  # fmt: skip
    fill: dict[int, Fill] = {
        3: lambda generator, shape: generator.integers(70, positions, shape, dtype=np.int32),
        4: lambda generator, shape: np.arange(shape[0], dtype=np.int32) % ROWS.bound,
        5: lambda generator, shape: np.tile(generator.integers(0, blocks, shape[1], np.int32), (shape[0], 1)),
    }
    return Sample(inputs, {"scale": 0.125, "block_size": 8}, fill)


def _samples() -> list[Sample]:
    def call(
        n_head: int, n_head_kv: int, d: int, causal: bool = True, most: int = 40, **attributes: float | str
    ) -> Sample:
        blocks = 8 if most <= 64 else 25
        cells = 8 * blocks
        inputs = (f32(ROWS, n_head, d), f32(cells, n_head_kv, d), f32(cells, n_head_kv, d),
                  i32(ROWS), i32(ROWS), i32(2, blocks))  # fmt: skip
        fill = {3: below(most), 4: below(2), 5: below(blocks)}
        said: dict[str, float | bool | str] = {"scale": d**-0.5, "block_size": 8, **attributes}
        if causal:
            return Sample(inputs, said, fill)
        return Sample((*inputs, i32(2)), {**said, "causal": False}, {**fill, 6: more_than_positions})

    def astray(d: int, most: int, is_causal: bool) -> Sample:
        """Some tokens of sequences and blocks that there are not, some at positions without a place."""
        sample = call(4, 2, d, causal=is_causal, most=most)
        count = bound(sample.inputs[5].shape[1])
        fill = {**sample.fill, 3: partly_below(most), 4: partly_below(2), 5: partly_below(count)}
        return Sample(
            sample.inputs, sample.attributes, fill if is_causal else {**fill, 6: partly_below(most)}
        )

    return [call(4, 4, 32), call(9, 3, 64, most=200), call(8, 1, 20), call(4, 2, 16, window=7),
            call(4, 2, 16, chunk=8), call(4, 2, 16, softcap=5.0), call(6, 2, 16, max_bias=8.0),
            call(4, 2, 32, causal=False), call(4, 2, 16, causal=False, window=7),
            call(6, 2, 16, causal=False, max_bias=8.0), _alike(200, 25),
            astray(32, 40, True), astray(64, 200, True), astray(16, 40, False),
            call(9, 3, 64, most=200, product_dtype="bf16"),
            call(8, 1, 20, window=7, softcap=5.0, product_dtype="bf16")]  # fmt: skip


attention = Op(
    "attention",
    "attention",
    infer=_infer,
    reference=_reference,
    samples=_samples,
    reads=(1, 2),
    attributes={
        "scale": None,
        "block_size": 32,
        "window": 0,
        "chunk": 0,
        "softcap": 0.0,
        "max_bias": 0.0,
        "causal": True,
        "k_dtype": "f32",
        "v_dtype": "f32",
        "product_dtype": "f32",
    },
)
