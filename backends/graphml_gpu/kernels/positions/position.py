"""What positions become: angles' cosines and sines, and factors of queries. An invocation a number."""

from __future__ import annotations

from graphml_gpu.kernels.grid import element_number
from graphml_gpu.language import Read, Write, bitcast, f32, function, i32, kernel, log, select, u32

_TURN = 6.283185307179586


@function
def _sine(x: f32) -> f32:
    """The sine of -pi/4 to pi/4, to a unit in the last place."""
    square = x * x
    tail = ((2.7525562e-06 * square - 1.9840874e-04) * square + 8.3333310e-03) * square - 1.6666667e-01
    return x + x * square * tail


@function
def _cosine(x: f32) -> f32:
    """The cosine of -pi/4 to pi/4, to a unit in the last place."""
    square = x * x
    tail = ((2.4433157e-05 * square - 1.3887316e-03) * square + 4.1666646e-02) * square - 0.5
    return 1.0 + square * tail


@kernel
def rope_table(
    positions: Read[i32],
    turns: Read[u32],
    out: Write[f32],
    n: u32,
    pairs: u32,
    scale: f32,
    *,
    GROUP: int = 64,
) -> None:
    """out[t, i] = cosine and sine, times scale, of positions[t] * the turns of pair i per position.

    positions [n / pairs]; out [n / pairs, pairs, 2]. turns [pairs, 2]: the fraction of a turn in 2^-32, and
    what is left of it in 2^-48. The angle is worked out in whole numbers, where full turns fall away by
    themselves: a float's 24 bits would be 1e-3 wrong for positions in the thousands, and functions of devices
    may be wrong by as much for large angles.
    """
    i = element_number()
    if i < n:
        pair = i % pairs
        position = positions[i // pairs]
        upper = bitcast(u32, position >> 16)
        lower = bitcast(u32, position) & 65535
        fine = turns[2 * pair + 1]
        turn = bitcast(u32, position) * turns[2 * pair] + upper * fine + ((lower * fine) >> 16)
        # The nearest quarter of a turn, and what is left: -1/8 to 1/8 of a turn.
        quarter = (turn + 0x20000000) >> 30
        rest = f32(bitcast(i32, turn - (quarter << 30))) * (_TURN / 4294967296.0)
        sine, cosine = _sine(rest), _cosine(rest)
        odd = (quarter & 1) == 1
        x, y = select(odd, -sine, cosine), select(odd, cosine, sine)
        sign = select(quarter >= 2, -scale, scale)
        out[2 * i] = x * sign
        out[2 * i + 1] = y * sign


@kernel
def position_scale(
    positions: Read[i32], out: Write[f32], n: u32, factor: f32, step: i32, offset: i32, *, GROUP: int = 64
) -> None:
    """out[t] = 1 + factor * log(1 + (positions[t] + offset) // step); positions, out [n]."""
    i = element_number()
    if i < n:
        out[i] = 1.0 + factor * log(1.0 + f32((positions[i] + offset) // step))
