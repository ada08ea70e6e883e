"""Recurrent ops of state spaces: an invocation a channel, which takes the tokens one after the other.

Knows tokens by their sequence and position; a token at position 0 begins with a state of zeros. One of a
sequence that the state does not have gets zeros.
"""

from __future__ import annotations

from collections.abc import Callable

from graphml_gpu.kernels.elementwise.formulas import softplus
from graphml_gpu.kernels.grid import element_number
from graphml_gpu.language import Read, Update, Write, exp, f32, function, i32, kernel, select, u32, unroll


@function
def itself(x: f32) -> f32:
    """X."""
    return x


@kernel
def ssm_conv(
    state: Update[f32], x: Read[f32], weight: Read[f32], bias: Read[f32], sequences: Read[i32],
    positions: Read[i32], out: Write[f32], n: u32, tokens: u32, n_sequences: u32,
    *, KEPT: int = 3, BIAS: bool = False, FUNCTION: Callable[[f32], f32] = itself, GROUP: int = 64,
) -> None:  # fmt: skip
    """out[t] = FUNCTION of the convolution of the last KEPT + 1 inputs; the state moves on.

    state [S, KEPT, n], the oldest input first; x, out [tokens, n], out may be x; weight [n, KEPT + 1];
    bias [n] where BIAS; sequences, positions [tokens].
    """
    i = element_number()
    if i < n:
        for t in range(0, tokens):
            if u32(sequences[t]) >= n_sequences:
                out[t * n + i] = 0.0
                continue
            mine = u32(sequences[t]) * KEPT * n + i
            fresh = positions[t] == 0
            total = f32(0.0)
            if BIAS:
                total = bias[i]
            for k in unroll(KEPT):
                before = select(fresh, f32(0.0), state[mine + k * n])
                total += before * weight[i * (KEPT + 1) + k]
                if k > 0:
                    state[mine + (k - 1) * n] = before
            now = x[t * n + i]
            state[mine + (KEPT - 1) * n] = now
            out[t * n + i] = FUNCTION(total + now * weight[i * (KEPT + 1) + KEPT])


@kernel
def ssm_scan(
    state: Update[f32], x: Read[f32], dt: Read[f32], a: Read[f32], b: Read[f32], c: Read[f32], d: Read[f32],
    sequences: Read[i32], positions: Read[i32], out: Write[f32], n: u32, n_head: u32, head_dim: u32,
    d_state: u32, n_group: u32, first: u32, tokens: u32, n_sequences: u32,
    *, BY_CHANNEL: bool = False, GROUP: int = 64,
) -> None:  # fmt: skip
    """Mamba 2, or BY_CHANNEL Mamba: the state fades and takes up step * x * b; out = state * c + d * x.

    state [S, n_head, d_state, head_dim]; x, out [tokens, n], out may be x; b, c [tokens, n_group, d_state].
    Of each head, or BY_CHANNEL of each channel: dt [tokens, ...], a [...] or [..., d_state], d [...]. Tokens
    from `first` on.
    """
    i = element_number()
    if i < n:
        head = i // head_dim
        row, n_rows = head, n_head
        if BY_CHANNEL:
            row, n_rows = i, n
        for t in range(first, tokens):
            if u32(sequences[t]) >= n_sequences:
                out[t * n + i] = 0.0
                continue
            step = softplus(dt[t * n_rows + row])
            now = x[t * n + i]
            y = now * d[row]
            mine = (u32(sequences[t]) * n_head + head) * d_state * head_dim + i - head * head_dim
            fresh = positions[t] == 0
            at = (t * n_group + head // (n_head // n_group)) * d_state
            fade = f32(0.0)
            if not BY_CHANNEL:
                fade = exp(step * a[row])
            for k in range(0, d_state):
                if BY_CHANNEL:
                    fade = exp(step * a[row * d_state + k])
                held = select(fresh, f32(0.0), state[mine + k * head_dim])
                held = held * fade + now * step * b[at + k]
                state[mine + k * head_dim] = held
                y += held * c[at + k]
            out[t * n + i] = y
