"""Rows of a table by hashes of the last few tokens (n-gram embeddings, as Qwen4 has them).

The state holds the tokens before the step, f32 [S, n - 1], the oldest first: ids below 2**24 are exact there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphml.errors import ShapeError
from graphml.ir.dtype import F32, I32
from graphml.ir.op import Array, Attributes, Op, Sample, Type, integer, integers
from graphml.ir.ops.recurrent import SAMPLE_SEQUENCES, runs, token_fills, want_tokens
from graphml.ir.ops.rules import ROWS, below, f32, i32, want_dtype

_WORD = (1 << 64) - 1


def _infer(inputs: Sequence[Type], attributes: Attributes) -> Type:
    state, tokens, sequences, positions = inputs
    want_dtype(state, F32, "state")
    want_dtype(tokens, I32, "tokens")
    want_tokens(tokens, sequences, positions)
    multipliers, sizes = integers(attributes, "multipliers"), integers(attributes, "sizes")
    before = len(multipliers) - 1
    if before < 1 or len(sizes) % before or len(sizes) != len(integers(attributes, "offsets")):
        raise ShapeError(
            f"wanted as many sizes as offsets, some for each of 2 to {before + 1} tokens; got {len(sizes)}"
        )
    if min(sizes) < 1:
        raise ShapeError(f"wanted sizes above 0; got {sizes}")
    if state.shape[1:] != (before,):
        raise ShapeError(f"wanted a state [S, {before}]; got {state}")
    return Type(I32, (tokens.shape[0], len(sizes)))


def _rows(inputs: Sequence[Array], attributes: Attributes) -> Array:
    """Of 2 to n tokens: (products of tokens and multipliers, xored) % size + offset, in 64 bits.

    Tokens before the start of the sequence, or before an end of text, are read as `eos`.
    """
    state, tokens, sequences, positions = inputs
    multipliers = integers(attributes, "multipliers")
    heads = list(zip(integers(attributes, "sizes"), integers(attributes, "offsets"), strict=True))
    n, eos = len(multipliers), integer(attributes, "eos")
    each = len(heads) // (n - 1)
    rows = np.zeros((len(tokens), len(heads)), np.int32)
    for run in runs(sequences, positions, len(state)):
        known = [*map(int, state[run.sequence]), *map(int, tokens[run.first : run.end])]
        for t in range(run.first, run.end):
            last = n - 1 + t - run.first
            mixed, hidden = known[last] * multipliers[0], False
            for back in range(1, n):
                token = known[last - back]
                hidden = hidden or back > positions[t] or token == eos
                mixed ^= (eos if hidden else token) * multipliers[back] & _WORD
                for head in range((back - 1) * each, back * each):
                    rows[t, head] = (mixed & _WORD) % heads[head][0] + heads[head][1]
        state[run.sequence] = known[len(known) - (n - 1) :]
    return rows


def _samples() -> list[Sample]:
    inputs = (f32(SAMPLE_SEQUENCES, 2), i32(ROWS), i32(ROWS), i32(ROWS))
    attributes: Attributes = {
        "multipliers": (1, 3, (1 << 63) - 25), "sizes": (7, 11, 5, 1 << 20), "offsets": (0, 7, 18, 23),
        "eos": 3,
    }  # fmt: skip

    def ids(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return generator.integers(0, 9, shape).astype(np.float32)

    return [Sample(inputs, attributes, {0: ids, 1: below(9), **fill}) for fill in token_fills(2, 3)]


ngram_rows = Op("ngram_rows", "recurrent", infer=_infer, reference=_rows, samples=_samples,
                attributes={"multipliers": None, "sizes": None, "offsets": None, "eos": 0},
                writes=0, recurrent=True)  # fmt: skip
