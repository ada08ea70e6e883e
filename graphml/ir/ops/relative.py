"""Attention with a learned bias for each bucket of distances (T5, Raffel et al. 2019, arXiv:1910.10683)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphml.errors import ShapeError
from graphml.ir.dtype import F32
from graphml.ir.op import Array, Attributes, Fill, Op, Sample, Type, integer
from graphml.ir.ops import attention as plain
from graphml.ir.ops.rules import ROWS, below, f32, i32, partly_below, want_dtype
from graphml.ir.shape import bound


def bucket(distance: Array, n_buckets: int, max_distance: int, causal: bool) -> Array:
    """The bucket of a distance ahead (back if negative), as in T5.

    Half of the buckets have one distance each, the others increasingly more; unless causal, the second half
    of all is for distances ahead. All distances from `max_distance` on share the last.
    """
    n = n_buckets if causal else n_buckets // 2
    first = np.where(distance > 0, 0 if causal else n, 0)
    far = np.maximum(-distance, 0) if causal else np.abs(distance)
    exact = n // 2
    spread = np.log(np.maximum(far, 1) / exact) / np.log(max_distance / exact) * (n - exact)
    return np.asarray(first + np.where(far < exact, far, np.minimum(exact + spread.astype(int), n - 1)))


def _shared(attributes: Attributes) -> Attributes:
    """The attributes of plain attention."""
    known = {name: value for name, value in plain.attention.attributes.items() if value is not None}
    return {**known, **{name: value for name, value in attributes.items() if name != "max_distance"}}


def _infer(inputs: Sequence[Type], attributes: Attributes) -> Type:
    bias = inputs[6]
    want_dtype(bias, F32, "bias")
    if len(bias.shape) != 2 or bias.shape[1:] != inputs[0].shape[1:2] or bound(bias.shape[0]) < 4:
        raise ShapeError(f"wanted a bias [at least 4 buckets, head] for q {inputs[0]}; got {bias}")
    return plain.attention.infer([*inputs[:6], *inputs[7:]], _shared(attributes))


def _reference(inputs: Sequence[Array], attributes: Attributes) -> Array:
    table, wide = inputs[6], plain.plain_caches(inputs, attributes)

    def bias(position: int, seen: Array) -> Array:
        """The bias of each head and visible position, [head, n]."""
        far, causal = integer(attributes, "max_distance"), plain.causal(attributes)
        return np.asarray(table[bucket(seen - position, len(table), far, causal)].T.astype(np.float64))

    return plain.attention_reference([inputs[0], *wide, *inputs[3:6], *inputs[7:]], _shared(attributes), bias)


def _samples() -> list[Sample]:
    def call(n_head: int, n_head_kv: int, d: int, n_buckets: int, causal: bool) -> Sample:
        cells, blocks = 64, 8
        inputs = (f32(ROWS, n_head, d), f32(cells, n_head_kv, d), f32(cells, n_head_kv, d),
                  i32(ROWS), i32(ROWS), i32(2, blocks), f32(n_buckets, n_head))  # fmt: skip
        fill = {3: below(40), 4: below(2), 5: below(blocks)}
        said: dict[str, float | bool] = {"scale": d**-0.5, "block_size": 8, "causal": causal,
                                         "max_distance": 20}  # fmt: skip
        more = () if causal else (i32(2),)
        return Sample((*inputs, *more), said, fill if causal else {**fill, 7: plain.more_than_positions})

    usual = [call(4, 4, 16, 8, causal=False), call(4, 2, 32, 32, causal=False),
             call(4, 2, 16, 8, causal=True)]  # fmt: skip
    astray: dict[int, Fill] = {3: partly_below(40), 4: partly_below(2), 5: partly_below(8)}
    return [*usual, Sample(usual[2].inputs, usual[2].attributes, {**usual[2].fill, **astray})]


relative_attention = Op(
    "relative_attention",
    "attention",
    infer=_infer,
    reference=_reference,
    samples=_samples,
    reads=(1, 2),
    attributes={
        "scale": None,
        "block_size": 32,
        "causal": True,
        "max_distance": 128,
        "k_dtype": "f32",
        "v_dtype": "f32",
    },
)
