"""From a router's scores to experts and their weights, and the weighted sum of what experts made."""

from __future__ import annotations

import math

from graphml_gpu.kernels.grid import element_number, group_number
from graphml_gpu.kernels.indexing.top_k import NONE_CHOSEN, next_largest, sortable
from graphml_gpu.language import (
    Array,
    Read,
    Write,
    barrier,
    exp,
    f32,
    function,
    group_max,
    group_sum,
    i32,
    kernel,
    local_id,
    private_array,
    shared_array,
    u32,
)


@function
def hold(x: f32, low: f32, high: f32) -> f32:
    """X, held between low and high; a NaN stays one."""
    return low if x < low else high if x > high else x


@function
def _softmax_of(x: Read[f32], start: u32, N: int, GROUP: int) -> tuple[f32, f32]:
    """What a softmax of a row needs: its largest element, and the sum of exp(element - largest)."""
    top = f32(-math.inf)
    for i in range(local_id(0), N, GROUP):
        top = max(top, x[start + i])
    highest = group_max(top)
    total = f32(0.0)
    for i in range(local_id(0), N, GROUP):
        total += exp(x[start + i] - highest)
    return highest, group_sum(total)


@function
def _score(x: f32, highest: f32, total: f32, SCORE: str) -> f32:
    score = x
    if SCORE == "softmax":
        score = exp(x - highest) / total
    if SCORE == "sigmoid":
        score = 1.0 / (1.0 + exp(-x))
    return score


@function
def _softmax_of_chosen(scores: Array[f32], K: int) -> None:
    """In place; for one invocation."""
    top = scores[0]
    for j in range(1, K):
        top = max(top, scores[j])
    total = f32(0.0)
    for j in range(K):
        scores[j] = exp(scores[j] - top)
        total += scores[j]
    for j in range(K):
        scores[j] = scores[j] / total


@function
def _normalise(scores: Array[f32], K: int, low: f32, high: f32) -> None:
    """In place; for one invocation."""
    total = f32(0.0)
    for j in range(K):
        total += scores[j]
    divisor = hold(total, low, high)
    for j in range(K):
        scores[j] = scores[j] / divisor


@kernel
def route_experts(
    x: Read[f32], bias: Read[f32], ids: Write[i32], weights: Write[f32], rows: u32, k: u32,
    low: f32, high: f32, *, N: int, K: int, SCORE: str = "softmax", BIAS: bool = False,
    NORMALISE: bool = False, GROUP: int = 64,
) -> None:  # fmt: skip
    """ids[row] = the K experts with the highest scores (plus bias); weights[row] = their scores.

    x [rows, N]; bias [N]; ids, weights [rows, K]. SCORE: "softmax" or "sigmoid" of x; "softmax_of_chosen":
    x itself, and of those chosen the softmax. NORMALISE: divided by their sum, held between low and high.
    k is K: compilers that know how long a loop of barriers is write it out, and PoCL then makes it wrong.
    """
    row = group_number()
    if row < rows:
        start = row * N
        scores = shared_array(f32, N)
        keys = shared_array(u32, N)
        highest, total = f32(0.0), f32(1.0)
        if SCORE == "softmax":
            highest, total = _softmax_of(x, start, N, GROUP)
        for i in range(local_id(0), N, GROUP):
            score = _score(x[start + i], highest, total, SCORE)
            scores[i] = score
            keys[i] = sortable(score + bias[i] if BIAS else score)
        barrier()
        chosen = private_array(f32, K)
        key, place = u32(NONE_CHOSEN), u32(0)
        for j in range(k):
            key, place = next_largest(keys, 0, N, key, place, GROUP)
            chosen[j] = scores[place]
            if local_id(0) == 0:
                ids[row * K + j] = i32(place)
        if local_id(0) == 0:
            if SCORE == "softmax_of_chosen":
                _softmax_of_chosen(chosen, K)
            if NORMALISE:
                _normalise(chosen, K, low, high)
            for j in range(K):
                weights[row * K + j] = chosen[j]


@function
def _element(x: Read[f32], start: u32, i: u32, n: u32) -> f32:
    """Element i of n from `start` on; 0 where there is none."""
    value = f32(0.0)
    if i < n:
        value = x[start + i]
    return value


@kernel
def gather_normalise(
    x: Read[f32], ids: Read[i32], out: Write[f32], rows: u32, n: u32, k: u32, low: f32, high: f32,
    *, GROUP: int = 64,
) -> None:  # fmt: skip
    """out[row] = x[row] at ids[row], 0 for an id outside, divided by their sum held between low and high.

    x [rows, n]; out [rows, k].
    """
    row = element_number()
    if row < rows:
        total = f32(0.0)
        for j in range(k):
            total += _element(x, row * n, u32(ids[row * k + j]), n)
        divisor = hold(total, low, high)
        for j in range(k):
            out[row * k + j] = _element(x, row * n, u32(ids[row * k + j]), n) / divisor


@kernel
def combine_experts(
    y: Read[f32], weights: Read[f32], out: Write[f32], n: u32, width: u32, used: u32, *, GROUP: int = 64
) -> None:
    """out[t, i] = the sum over u of y[t, u, i] * weights[t, u]; y [T, used, width]; n elements of out."""
    i = element_number()
    if i < n:
        token = i // width
        column = i % width
        total = f32(0.0)
        for u in range(used):
            total += y[(token * used + u) * width + column] * weights[token * used + u]
        out[i] = total
