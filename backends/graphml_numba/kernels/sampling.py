"""Sampling of tokens, see `graphml.ir.ops.sampling`, whose settings and results of a row these are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from graphml_cpu.array_kernels.step import array_step, as_stored, joined
from graphml_cpu.lowering.step import Step

from graphml.ir.node import Node
from graphml_numba.helpers import F32, F64, Array, Number, helper, sums_helper
from graphml_numba.kernel_of import kernel_of
from graphml_numba.kernels.exponential import exp

INVERSE_TEMPERATURE, TOP_K, TOP_P, LOWEST, NUMBER = range(5)
"""Columns of settings."""
LOG_SUM, ID, BEFORE, UPTO = range(4)
"""Columns of the results of `sample_row`."""
ZERO, LARGEST = F32(0), F32(3e38)


@helper
def from_row(settings: Array) -> bool:
    """Whether the token is sampled from the whole row: neither top_k nor top_p is set."""
    return bool(settings[TOP_K] <= 0 and settings[TOP_P] >= 1)


@helper
def weight_of(logit: Number, shift: Number, settings: Array) -> Number:
    """The token's share, times an unknown number: 0 below the lowest logit."""
    if not logit >= shift + settings[LOWEST]:
        return ZERO
    return exp(min((logit - shift) * settings[INVERSE_TEMPERATURE], ZERO))


@sums_helper
def sum_of_exp(x: Array, shift: Number) -> Number:
    """The sum of exp(x - shift)."""
    total = F64(0)
    for i in range(x.shape[0]):
        total += F64(exp(x[i] - shift))
    return total


@kernel_of("sample_row")
def sample_row(out: Array, logits: Array, top_logits: Array, settings: Array, begin: int, end: int) -> None:
    """out [O, 4] = the logarithm of the sum of exp(row), and what is sampled from the whole row.

    The sampled token is the first one whose running sum of weights is more than number * total.
    """
    n = logits.shape[1]
    for row in range(begin, end):
        shift = max(-LARGEST, min(top_logits[row, 0], LARGEST))
        out[row] = ZERO
        out[row, LOG_SUM] = np.log(sum_of_exp(logits[row], shift)) + shift
        if not from_row(settings[row]):
            continue
        total = 0.0
        for i in range(n):
            total += weight_of(logits[row, i], shift, settings[row])
        wanted = min(F64(settings[row, NUMBER]) * total, np.nextafter(total, 0.0))
        running = 0.0
        for i in range(n):
            upto = running + weight_of(logits[row, i], shift, settings[row])
            if upto > wanted:
                out[row, ID], out[row, BEFORE], out[row, UPTO] = i, running / total, upto / total
                break
            running = upto


@helper
def index_of_sampled(logits: Array, log_sum: Number, settings: Array) -> Number:
    """The index of the sampled token among the largest logits, which are in descending order."""
    kept, largest = logits.shape[0], logits[0]
    if settings[TOP_K] > 0:
        kept = min(kept, int(settings[TOP_K]))
    if settings[TOP_P] < 1:  # those before which the running sum has not reached top_p of the whole
        whole = exp(log_sum - largest)
        if settings[TOP_K] > 0:
            whole = ZERO
            for i in range(kept):
                whole += exp(logits[i] - largest)
        running, n = ZERO, 1
        for i in range(kept):
            running += exp(logits[i] - largest)
            n += running < settings[TOP_P] * whole
        kept = min(kept, n)
    n = 0
    for i in range(kept):
        n += logits[i] >= largest + settings[LOWEST]
    kept = min(kept, max(1, n))
    total = ZERO
    for i in range(kept):
        total += exp((logits[i] - largest) * settings[INVERSE_TEMPERATURE])
    running, n = ZERO, 0
    for i in range(kept):
        running += exp((logits[i] - largest) * settings[INVERSE_TEMPERATURE])
        n += running <= settings[NUMBER] * total
    return min(n, kept - 1)


def call_sample_token(node: Node, function: Callable[..., Any]) -> Step:
    """The call of the kernel of `sample_token`."""
    names = ("out", "ids", "top_logits", "of_row", "settings")
    values = (node, *node.inputs)
    arrays = {name: as_stored(value) for name, value in zip(names, values, strict=True)}
    return array_step(function, arrays, joined(node.shape, node.name))


@kernel_of("sample_token", call=call_sample_token, refuses=lambda node: None)
def sample_token(
    out: Array, ids: Array, top_logits: Array, of_row: Array, settings: Array, begin: int, end: int
) -> None:
    """out [O] = the token sampled from the whole row, or from its largest logits."""
    for row in range(begin, end):
        if from_row(settings[row]):
            out[row] = np.int32(of_row[row, ID])
        else:
            out[row] = ids[row, index_of_sampled(top_logits[row], of_row[row, LOG_SUM], settings[row])]
