"""exp of float32, in operations that LLVM finds vectors for, and the functions made of it."""

from __future__ import annotations

import math

import numpy as np

from graphml_numba.helpers import F32, I32, U32, Number, helper

LOG2_E = F32(1.4426950408889634)
LN_2_HIGH, LN_2_LOW = F32(0.693359375), F32(-2.12194440e-4)
LOWEST, HIGHEST = F32(-104.0), F32(89.0)  # beyond them exp is 0 and infinity
HALF, ONE, TWO = F32(0.5), F32(1.0), F32(2.0)
# exp(r) for |r| <= log(2) / 2, by Remez's algorithm (Cephes, expf).
TERMS = tuple(map(F32, (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1)))


@helper
def exp(x: Number) -> Number:
    """2^k exp(r), with x = k log(2) + r. The power comes in two halves: it may be no normal number."""
    within = min(max(x, LOWEST), HIGHEST) if x == x else F32(0.0)
    k = np.floor(within * LOG2_E + HALF)
    r = within - k * LN_2_HIGH - k * LN_2_LOW
    y = TERMS[0]
    for i in range(1, 5):
        y = y * r + TERMS[i]
    y = (y * r + HALF) * r * r + r + ONE
    first = I32(k) >> 1
    y = y * power_of_two(first) * power_of_two(I32(k) - first)
    return y if x == x else x


@helper
def power_of_two(k: Number) -> Number:
    """2^k for a normal result: its exponent, moved to its place."""
    return U32((k + 127) << 23).view(F32)


@helper
def sigmoid(x: Number) -> Number:
    """1 / (1 + exp(-x))."""
    return ONE / (ONE + exp(-x))


@helper
def tanh(x: Number) -> Number:
    """1 - 2 / (exp(2 |x|) + 1), with the sign of x."""
    size = ONE - TWO / (exp(TWO * abs(x)) + ONE)
    return -size if x < 0 else size


@helper
def erf(x: Number) -> Number:
    """The error function."""
    return F32(math.erf(x))
