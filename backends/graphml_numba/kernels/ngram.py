"""Rows of a table by hashes of the last few tokens, see `graphml.ir.ops.ngram`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from graphml_cpu.array_kernels.step import array_step, as_stored
from graphml_cpu.lowering.step import KernelCall, RowCount

from graphml.ir.node import Node
from graphml.ir.op import integer, integers
from graphml_numba.helpers import F32, I32, I64, Array, Number, helper
from graphml_numba.kernel_of import kernel_of

U64 = np.uint64
WORD = (1 << 64) - 1


def call_ngram_rows(node: Node, make: Callable[..., Callable[..., Any]]) -> KernelCall:
    """The call of the kernel of `ngram_rows`, on one thread: a few numbers for each token."""
    names = ("out", "state", "tokens", "sequences", "positions")
    values = (node, *node.inputs)
    arrays = {name: as_stored(value) for name, value in zip(names, values, strict=True)}
    numbers = (integers(node.attributes, name) for name in ("multipliers", "sizes", "offsets"))
    kernel = make(*map(tuple, numbers), integer(node.attributes, "eos"))
    return array_step(kernel, arrays, RowCount(None, 1), writes=("out", "state"), name=node.op.name)


@helper
def token_at(t: int, first: int, tokens: Array, before: Array) -> Number:
    """Token t of a step; those of a sequence that are before its first one in the step are in `before`."""
    return I64(tokens[t]) if t >= first else I64(before[before.shape[0] + t - first])


@kernel_of("ngram_rows", call=call_ngram_rows, refuses=lambda node: None)
@functools.cache
def ngram_rows(
    multipliers: tuple[int, ...], sizes: tuple[int, ...], offsets: tuple[int, ...], eos: int
) -> Callable[..., Any]:
    """out [T, heads] = rows of the table; the state [S, n - 1] = the last tokens of each sequence.

    Zeros for a token of a sequence that the state does not have.
    """
    factors = np.array([multiplier & WORD for multiplier in multipliers], U64)
    divisors, starts = np.array(sizes, U64), np.array(offsets, np.int64)
    n, each = len(multipliers), len(sizes) // (len(multipliers) - 1)

    def kernel(
        out: Array, state: Array, tokens: Array, sequences: Array, positions: Array, begin: int, end: int
    ) -> None:
        first = 0
        for t in range(tokens.shape[0]):
            if not 0 <= sequences[t] < state.shape[0]:
                out[t] = 0
                continue
            before = state[sequences[t]]
            if t > 0 and (positions[t] == 0 or sequences[t] != sequences[t - 1]):
                first = t
            mixed, hidden = U64(I64(tokens[t])) * factors[0], False
            for back in range(1, n):
                token: Number = I64(0)
                if not hidden and back <= positions[t]:
                    token = token_at(t - back, first, tokens, before)
                    hidden = token == eos
                else:
                    hidden = True
                mixed ^= U64(I64(eos) if hidden else token) * factors[back]
                for head in range((back - 1) * each, back * each):
                    out[t, head] = I32(I64(mixed % divisors[head]) + starts[head])
            last = t + 1 == tokens.shape[0]
            if last or positions[t + 1] == 0 or sequences[t + 1] != sequences[t]:
                for i in range(n - 1):  # each element is made of later ones
                    before[i] = F32(token_at(t + 2 - n + i, first, tokens, before))

    return kernel
