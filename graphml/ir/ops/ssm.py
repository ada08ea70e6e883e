"""The selective state space of Mamba (Gu and Dao 2023, arXiv:2312.00752) and Mamba 2 (arXiv:2405.21060).

Both are one recurrence: state = exp(step * A) * state + step * x * B, y = state * C + D * x, where step is
the softplus of dt. Mamba has an A for each channel and element of the state, Mamba 2 one for each head.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphml.errors import ShapeError
from graphml.ir.dtype import F32
from graphml.ir.op import Array, Attributes, Fill, Op, Sample, Type
from graphml.ir.ops.recurrent import SAMPLE_SEQUENCES, runs, token_fills, want_tokens
from graphml.ir.ops.rules import ROWS, f32, i32, want_dtype
from graphml.ir.shape import fixed


def _infer(inputs: Sequence[Type], attributes: Attributes) -> Type:
    state, x, dt, a, b, c, d, sequences, positions = inputs
    for value, role in zip(inputs[:7], ("state", "x", "dt", "A", "B", "C", "D"), strict=True):
        want_dtype(value, F32, role)
    want_tokens(x, sequences, positions)
    n_head, d_state, head_dim = map(fixed, state.shape[1:])
    channels = n_head * head_dim
    if x.shape[1:] != (channels,):
        raise ShapeError(f"wanted x [T, n_head * head_dim] of a state [S, n_head, d_state, head_dim]; "
                         f"got {x} and {state}")  # fmt: skip
    forms = [(n_head, 1), *([(channels, d_state)] if n_head == 1 else [])]
    if a.shape not in forms or d.shape != a.shape[:1] or dt.shape != (x.shape[0], a.shape[0]):
        raise ShapeError(
            f"wanted A {' or '.join(map(str, forms))}, D {a.shape[:1]} and dt [T, {a.shape[0]}] for {state}; "
            f"got {a}, {d} and {dt}"
        )
    groups, rest = divmod(fixed(b.shape[1]), d_state)
    if b.shape != c.shape or b.shape[0] != x.shape[0] or rest or not groups or n_head % groups:
        raise ShapeError(f"wanted B and C [T, n_group * d_state] for {state}; got {b} and {c}")
    return x


def _scan(inputs: Sequence[Array], attributes: Attributes) -> Array:
    state, x, dt, a, b, c, d, sequences, positions = inputs
    _, n_head, d_state, head_dim = state.shape
    step = np.logaddexp(0.0, dt.astype(np.float64))
    # As [n_head, d_state, head_dim], with 1 for dimensions that a value does not depend on.
    per_head = a.shape == (n_head, 1)
    alike = (n_head, 1, 1) if per_head else (1, 1, head_dim)
    decay = a.astype(np.float64)[:, :, None] if per_head else a.T.astype(np.float64)[None]
    each = n_head * d_state // b.shape[1]  # heads of a group
    b_now, c_now = (np.repeat(matrix.reshape(len(x), -1, d_state), each, 1)[..., None] for matrix in (b, c))
    y = np.zeros(x.shape, np.float32)
    for run in runs(sequences, positions, len(state)):
        now = np.zeros(state.shape[1:]) if run.fresh else state[run.sequence].astype(np.float64)
        for t in range(run.first, run.end):
            x_t, step_t = x[t].reshape(n_head, 1, head_dim).astype(np.float64), step[t].reshape(alike)
            now = now * np.exp(step_t * decay) + x_t * step_t * b_now[t]
            y_t = (now * c_now[t]).sum(axis=1, keepdims=True) + x_t * d.reshape(alike)
            y[t] = y_t.reshape(-1)
        state[run.sequence] = now
    return y


def _samples() -> list[Sample]:
    def negative(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return -generator.uniform(0.1, 2.0, shape).astype(np.float32)

    def call(
        n_head: int, head_dim: int, d_state: int, n_group: int, fill: dict[int, Fill], per_head: bool
    ) -> Sample:
        channels = n_head * head_dim
        n = n_head if per_head else channels
        inputs = (f32(SAMPLE_SEQUENCES, n_head, d_state, head_dim), f32(ROWS, channels), f32(ROWS, n),
                  f32(n, 1 if per_head else d_state), f32(ROWS, n_group * d_state),
                  f32(ROWS, n_group * d_state), f32(n), i32(ROWS), i32(ROWS))  # fmt: skip
        return Sample(inputs, {}, {**fill, 3: negative})

    going_on, beginning, astray = token_fills(7, 8)
    return [
        call(4, 20, 6, 2, going_on, True),
        call(2, 64, 5, 1, beginning, True),
        call(1, 70, 4, 1, beginning, False),
        call(1, 128, 16, 1, going_on, False),
        call(2, 64, 5, 1, astray, True),
        call(1, 70, 4, 1, astray, False),
    ]


ssm_scan = Op("ssm_scan", "recurrent", infer=_infer, reference=_scan, samples=_samples, inplace=(1,),
              writes=0, recurrent=True)  # fmt: skip
