"""The selective state space of Mamba and Mamba 2: each token changes its sequence's state and reads it.

The channels of a head lie side by side in a state, so that sums over the state need no sum over lanes and go
through memory once, in order. The threads share the channels and take the tokens one after the other.
"""

from __future__ import annotations

from collections.abc import Callable

from graphml_cpu.compiler import Address, Dim, Int, RunAddress
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.share import Vector, share
from graphml_cpu.kernels.vector_rows import get, put, put_zeros
from graphml_cpu.simd import (
    F32,
    WIDTH,
    exp,
    fma,
    load,
    load_f32,
    load_i32,
    log1p_exp,
    splat,
    store,
    zero,
)

_CHUNK = 4 * WIDTH  # channels of a head that are worked on at a time
_BYTES = WIDTH * 4


@inline
def _forget(state: int, rows: int, row: int, count: int) -> None:
    """Zeros for the first `count` numbers of each of the rows."""
    for n in range(rows):
        for i in range(0, count, WIDTH):
            put(state + n * row + i * 4, zero(F32), count - i)


@inline
def _chunk(
    state: int, x: int, b: int, c: int, out: int, row: int, d_state: int, step: Vector, decay: Vector,
    d: Vector,
) -> None:  # fmt: skip
    """One token of `_CHUNK` channels."""
    x0, x1 = load(F32, x), load(F32, x + _BYTES)
    x2, x3 = load(F32, x + 2 * _BYTES), load(F32, x + 3 * _BYTES)
    u0, u1, u2, u3 = x0 * step, x1 * step, x2 * step, x3 * step
    y0, y1, y2, y3 = x0 * d, x1 * d, x2 * d, x3 * d
    for n in range(d_state):
        at = state + n * row
        into, of = splat(F32, load_f32(b + n * 4)), splat(F32, load_f32(c + n * 4))
        s0 = fma(u0, into, load(F32, at) * decay)
        s1 = fma(u1, into, load(F32, at + _BYTES) * decay)
        s2 = fma(u2, into, load(F32, at + 2 * _BYTES) * decay)
        s3 = fma(u3, into, load(F32, at + 3 * _BYTES) * decay)
        store(at, s0)
        store(at + _BYTES, s1)
        store(at + 2 * _BYTES, s2)
        store(at + 3 * _BYTES, s3)
        y0, y1, y2, y3 = fma(s0, of, y0), fma(s1, of, y1), fma(s2, of, y2), fma(s3, of, y3)
    store(out, y0)
    store(out + _BYTES, y1)
    store(out + 2 * _BYTES, y2)
    store(out + 3 * _BYTES, y3)


@inline
def _vector(
    state: int, x: int, b: int, c: int, out: int, row: int, d_state: int, step: Vector, decay: Vector,
    d: Vector, count: int,
) -> None:  # fmt: skip
    """One token of a vector's channels, or of the `count` that are left."""
    x0 = get(x, count)
    u0, y0 = x0 * step, x0 * d
    for n in range(d_state):
        at = state + n * row
        s0 = fma(u0, splat(F32, load_f32(b + n * 4)), get(at, count) * decay)
        put(at, s0, count)
        y0 = fma(s0, splat(F32, load_f32(c + n * 4)), y0)
    put(out, y0, count)


def make_ssm_scan() -> Callable[..., None]:
    """Mamba 2: state float32 [S, n_head, d_state, head_dim], a decay per head; out may be x.

    x, out float32 [rows, n_head * head_dim]; dt float32 [rows, n_head]; a, d float32 [n_head]; b, c float32
    [rows, n_group * d_state]; sequences, positions int32 [rows], zeros for a token of a sequence outside.
    """

    def ssm_scan(
        ith: Int, nth: Int, state: RunAddress, x: Address, dt: Address, a: Address, b: Address, c: Address,
        d: Address, sequences: Address, positions: Address, out: Address, n_head: Int, head_dim: Int,
        d_state: Int, n_group: Int, n_sequences: Dim, rows: Dim,
    ) -> None:  # fmt: skip
        row = head_dim * 4
        chunks = (head_dim + _CHUNK - 1) // _CHUNK
        begin, end = share(ith, nth, n_head * chunks)
        for unit in range(begin, end):
            head = unit // chunks
            first = (unit - head * chunks) * _CHUNK
            count = min(head_dim - first, _CHUNK)
            group = head // (n_head // n_group)
            decay_of, d_of = splat(F32, load_f32(a + head * 4)), splat(F32, load_f32(d + head * 4))
            for t in range(rows):
                sequence, channel = load_i32(sequences + t * 4), ((t * n_head + head) * head_dim + first) * 4
                if not 0 <= sequence < n_sequences:
                    put_zeros(out + channel, count)
                    continue
                place = sequence * n_head + head
                mine = state + (place * d_state * head_dim + first) * 4
                if load_i32(positions + t * 4) == 0:
                    _forget(mine, d_state, row, count)
                step = log1p_exp(splat(F32, load_f32(dt + (t * n_head + head) * 4)))
                decay = exp(step * decay_of)
                of_group = (t * n_group + group) * d_state * 4
                if count == _CHUNK:
                    _chunk(mine, x + channel, b + of_group, c + of_group, out + channel, row, d_state, step,
                           decay, d_of)  # fmt: skip
                else:
                    for i in range(0, count, WIDTH):
                        at = channel + i * 4
                        _vector(mine + i * 4, x + at, b + of_group, c + of_group, out + at, row, d_state,
                                step, decay, d_of, count - i)  # fmt: skip

    return ssm_scan


def make_ssm_scan_channels() -> Callable[..., None]:
    """Mamba: state float32 [S, d_state, n], a decay per channel and element of the state; out may be x.

    x, dt, out float32 [rows, n]; a float32 [d_state, n]; d float32 [n]; b, c float32 [rows, d_state].
    """

    def ssm_scan_channels(
        ith: Int, nth: Int, state: RunAddress, x: Address, dt: Address, a: Address, b: Address, c: Address,
        d: Address, sequences: Address, positions: Address, out: Address, n: Int, d_state: Int,
        n_sequences: Dim, rows: Dim,
    ) -> None:  # fmt: skip
        row = n * 4
        begin, end = share(ith, nth, (n + WIDTH - 1) // WIDTH)
        for unit in range(begin, end):
            at, count = unit * WIDTH * 4, n - unit * WIDTH
            d_of = get(d + at, count)
            for t in range(rows):
                sequence = load_i32(sequences + t * 4)
                if not 0 <= sequence < n_sequences:
                    put(out + t * row + at, zero(F32), count)
                    continue
                mine = state + sequence * d_state * row + at
                if load_i32(positions + t * 4) == 0:
                    _forget(mine, d_state, row, min(count, WIDTH))
                x0 = get(x + t * row + at, count)
                step = log1p_exp(get(dt + t * row + at, count))
                u0, y0 = x0 * step, x0 * d_of
                for k in range(d_state):
                    decay = exp(step * get(a + k * row + at, count))
                    into = splat(F32, load_f32(b + (t * d_state + k) * 4))
                    s0 = fma(u0, into, get(mine + k * row, count) * decay)
                    put(mine + k * row, s0, count)
                    y0 = fma(s0, splat(F32, load_f32(c + (t * d_state + k) * 4)), y0)
                put(out + t * row + at, y0, count)

    return ssm_scan_channels
