"""Recurrent ops: each token changes the state of its sequence, and its result depends on the state before.

A state is f32 [S, ...], a row for each sequence. The tokens of a sequence are in order of their
positions in a step; one at position 0 begins with a state of zeros, and nothing else resets it. Such an op
changes its state and returns a value of its own (`recurrent`, decision 20). A token whose sequence is outside
0 to S - 1 (negative ones are) has a result of zeros, and changes no state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from graphml.errors import ShapeError
from graphml.ir.dtype import F32, I32
from graphml.ir.op import Array, Attributes, Fill, Op, Sample, Type
from graphml.ir.ops.rules import ROWS, f32, i32, want_dtype
from graphml.ir.shape import fixed


class TokenRun(NamedTuple):
    """Tokens `first` to `end` of a step, which belong to one sequence. fresh: they begin with zeros."""

    sequence: int
    first: int
    end: int
    fresh: bool


def runs(sequences: Array, positions: Array, n_sequences: int) -> Iterator[TokenRun]:
    """The tokens of a step, sequence by sequence, but for those of sequences outside 0 to n_sequences - 1."""
    cuts = np.flatnonzero((np.diff(sequences) != 0) | (positions[1:] == 0)) + 1
    for first, end in zip([0, *cuts], [*cuts, len(sequences)], strict=True):
        if 0 <= sequences[first] < n_sequences:
            yield TokenRun(int(sequences[first]), int(first), int(end), bool(positions[first] == 0))


def want_tokens(x: Type, sequences: Type, positions: Type) -> None:
    """Raise a `ShapeError` unless `sequences` and `positions` are i32 with an element for each row of x."""
    want_dtype(sequences, I32, "sequences")
    want_dtype(positions, I32, "positions")
    if sequences.shape != x.shape[:1] or positions.shape != x.shape[:1]:
        raise ShapeError(f"wanted sequences [T] and positions [T] of {x}; got {sequences} and {positions}")


SAMPLE_SEQUENCES = 3


def _sample_sequences(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Thirds of the step, not in the order of the sequences' numbers."""
    return np.array([(2, 0, 1)[3 * t // shape[0]] for t in range(shape[0])], np.int32)


def _sequences_astray(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Fifths of the step, of which the first and the fourth are of sequences that no state has."""
    which = (SAMPLE_SEQUENCES, 1, 0, -1, 2)
    return np.array([which[5 * t // shape[0]] for t in range(shape[0])], np.int32)


def _sample_positions(sequences: Fill, *starts: int) -> Fill:
    """Positions of tokens in order; the first of each sequence is one of `starts`, by its number."""

    def make(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        own = sequences(generator, shape)
        return np.array([starts[s] + int((own[:t] == s).sum()) for t, s in enumerate(own)], np.int32)

    return make


def token_fills(sequences: int, positions: int) -> list[dict[int, Fill]]:
    """Ways to fill these two operands: sequences that continue, some that begin, some that are outside.

    A sample's state has `SAMPLE_SEQUENCES` rows. A single token is of the last sequence, or of one outside.
    """
    ways = ((_sample_sequences, (0, 4, 9)), (_sample_sequences, (5, 0, 0)), (_sequences_astray, (7, 0, 4, 0)))
    return [{sequences: fill, positions: _sample_positions(fill, *starts)} for fill, starts in ways]


def _infer_conv(inputs: Sequence[Type], attributes: Attributes) -> Type:
    state, x, weight, sequences, positions = inputs[:5]
    for value, role in ((state, "state"), (x, "x"), (weight, "weight")):
        want_dtype(value, F32, role)
    want_tokens(x, sequences, positions)
    if len(x.shape) != 2 or len(weight.shape) != 2 or weight.shape[:1] != x.shape[1:]:
        raise ShapeError(f"wanted x [T, channels] and weight [channels, d_conv]; got {x} and {weight}")
    if state.shape[1:] != (fixed(weight.shape[1]) - 1, x.shape[1]) or fixed(weight.shape[1]) < 2:
        raise ShapeError(f"wanted a state [S, d_conv - 1, channels] for weight {weight}; got {state}")
    if len(inputs) > 5 and inputs[5] != Type(F32, x.shape[1:]):
        raise ShapeError(f"wanted a bias [channels] of {x}; got {inputs[5]}")
    return x


def _conv(inputs: Sequence[Array], attributes: Attributes) -> Array:
    state, x, weight, sequences, positions = inputs[:5]
    taps = weight.T.astype(np.float64)
    y = np.zeros(x.shape, np.float32)
    for run in runs(sequences, positions, len(state)):
        n = run.end - run.first
        before = np.zeros_like(state[0]) if run.fresh else state[run.sequence]
        seen = np.concatenate([before, x[run.first : run.end]])
        total = sum(seen[i : i + n] * tap for i, tap in enumerate(taps))
        y[run.first : run.end] = total if len(inputs) < 6 else total + inputs[5]
        state[run.sequence] = seen[n:]
    return y


def _conv_samples() -> list[Sample]:
    def call(channels: int, d_conv: int, fill: dict[int, Fill], bias: bool) -> Sample:
        inputs = (f32(SAMPLE_SEQUENCES, d_conv - 1, channels), f32(ROWS, channels), f32(channels, d_conv),
                  i32(ROWS), i32(ROWS))  # fmt: skip
        return Sample((*inputs, f32(channels)) if bias else inputs, {}, fill)

    going_on, beginning, astray = token_fills(3, 4)
    return [call(64, 4, going_on, True), call(70, 4, beginning, False), call(20, 2, beginning, True),
            call(70, 4, astray, True)]  # fmt: skip


# The causal depthwise convolution of Mamba (Gu and Dao 2023, arXiv:2312.00752) and others, not activated.
ssm_conv = Op("ssm_conv", "recurrent", infer=_infer_conv, reference=_conv, samples=_conv_samples,
              inplace=(1,), writes=0, recurrent=True)  # fmt: skip
