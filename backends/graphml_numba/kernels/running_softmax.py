"""Attention of one query to a tile of cells, with a running softmax.

Milakov and Gimelshein 2018, arXiv:1805.02867. Of the cells so far are kept: `peak`, the largest score;
`total`, the sum of exp(score - peak); `sums`, that of exp(score - peak) * value. A tile with a larger score
scales `total` and `sums` down to the new peak. These are arrays, with an element for each query.
"""

from __future__ import annotations

import numpy as np

from graphml_numba.helpers import F32, Array, Number, helper, sums_helper

TILE = 64
"""Cells of a tile, whose keys and values are float32 in the first two caches."""


@helper
def exp(x: Number) -> Number:
    """e to the power of x."""
    return np.exp(x)


@sums_helper
def dot(a: Array, b: Array) -> Number:
    """The sum of the products of two arrays of one length."""
    total = F32(0)
    for i in range(a.shape[0]):
        total += a[i] * b[i]
    return total


@sums_helper
def add_values(weights: Array, values: Array, sums: Array) -> None:
    """Add each row of values times its weight to sums; four rows at once, so that sums are read less."""
    n = values.shape[0]
    fours = n // 4 * 4
    for c in range(0, fours, 4):
        w0, w1, w2, w3 = weights[c], weights[c + 1], weights[c + 2], weights[c + 3]
        v0, v1, v2, v3 = values[c], values[c + 1], values[c + 2], values[c + 3]
        for i in range(sums.shape[0]):
            sums[i] += (w0 * v0[i] + w1 * v1[i]) + (w2 * v2[i] + w3 * v3[i])
    for c in range(fours, n):
        w, v = weights[c], values[c]
        for i in range(sums.shape[0]):
            sums[i] += w * v[i]


@helper
def score_tile(q: Array, keys: Array, scale: Number, softcap: Number, scores: Array) -> None:
    """scores = the products of q with each of keys [n, d], scaled, and capped if softcap is not 0."""
    for c in range(keys.shape[0]):
        score = dot(q, keys[c]) * scale
        scores[c] = softcap * np.tanh(score / softcap) if softcap != F32(0) else score


@helper
def start(peaks: Array, totals: Array, sums: Array) -> None:
    """No query has seen a cell."""
    peaks[:] = -F32(np.inf)
    totals[:] = F32(0)
    sums[:] = F32(0)


@helper
def start_at_sinks(peaks: Array, totals: Array, sinks: Array) -> None:
    """The queries, of as many heads in turn, have seen the sinks of their heads: scores without values."""
    totals[:] = F32(1)
    for at in range(peaks.shape[0]):
        peaks[at] = sinks[at % sinks.shape[0]]


@helper
def add_tile(scores: Array, values: Array, peaks: Array, totals: Array, sums: Array, at: int) -> None:
    """Add cells of these scores [n], which are overwritten, and values [n, d] to those of query `at`."""
    highest = scores[0]
    for score in scores:
        if highest == highest and not (score <= highest):
            highest = score  # a NaN stays
    if highest == -np.inf:
        return
    peak = peaks[at]
    if not (highest <= peak):
        down = exp(peak - highest)
        totals[at] *= down
        for i in range(sums.shape[1]):
            sums[at, i] *= down
        peak = highest
    total = totals[at]
    for c in range(scores.shape[0]):
        scores[c] = exp(scores[c] - peak)
        total += scores[c]
    peaks[at], totals[at] = peak, total
    add_values(scores, values, sums[at])


@helper
def finish(totals: Array, sums: Array, at: int, seen: bool, out: Array) -> None:
    """out = the weighted mean of the values that query `at` has seen; zeros if it sees none."""
    for i in range(out.shape[0]):
        out[i] = sums[at, i] / totals[at] if seen else F32(0)
