"""exp, tanh and the logistic function of float32, as loops over rows call them.

They have no branch and call nothing, so that LLVM makes vectors of the loops. NaN and infinities are right.
"""

from __future__ import annotations

from graphml_numba.helpers import F32, I32, U32, Number, helper

ONE, TWO = F32(1), F32(2)
LOWEST, HIGHEST = F32(-104), F32(89)
"""exp is 0 below, and infinity above."""
LOG2_E = F32(1.4426950408889634)
LN2_HIGH, LN2_LOW = F32(0.693359375), F32(-2.12194440054690583e-4)
"""ln 2 in two parts: a multiple of the first by a small whole number is exact."""
ROUNDER = F32(1.5 * 2**23)
"""Added to a small number, it leaves the nearest whole number in the lowest bits."""
ROUNDER_BITS = I32(ROUNDER.view(I32))


@helper
def power_of_two(n: Number) -> Number:
    """2^n: a float32 whose exponent is n."""
    return U32((n + 127) << 23).view(F32)


@helper
def exp(x: Number) -> Number:
    """e^x = 2^n e^r with n = round(x / ln 2), and for the small r a polynomial (Cephes, expf)."""
    x = LOWEST if x < LOWEST else x  # a NaN passes: it is not less than anything
    x = HIGHEST if x > HIGHEST else x
    rounded = F32(x * LOG2_E + ROUNDER)
    n = I32(rounded.view(I32) - ROUNDER_BITS)
    whole = rounded - ROUNDER
    r = (x - whole * LN2_HIGH) - whole * LN2_LOW
    y = F32(1.9875691500e-4)
    y = y * r + F32(1.3981999507e-3)
    y = y * r + F32(8.3334519073e-3)
    y = y * r + F32(4.1665795894e-2)
    y = y * r + F32(1.6666665459e-1)
    y = y * r + F32(5.0000001201e-1)
    y = y * (r * r) + r + ONE
    half = n >> 1  # 2^n itself may be too large or too small for a float32
    return y * power_of_two(half) * power_of_two(n - half)


@helper
def sigmoid(x: Number) -> Number:
    """1 / (1 + e^-x)."""
    return ONE / (ONE + exp(-x))


@helper
def tanh(x: Number) -> Number:
    """A polynomial near 0 (Cephes, tanhf), 1 - 2 / (e^2|x| + 1) with the sign of x elsewhere."""
    size, square = abs(x), x * x
    far = ONE - TWO / (exp(size + size) + ONE)
    y = F32(-5.70498872745e-3)
    y = y * square + F32(2.06390887954e-2)
    y = y * square + F32(-5.37397155531e-2)
    y = y * square + F32(1.33314422036e-1)
    y = y * square + F32(-3.33332819422e-1)
    near = x + x * square * y
    signed = -far if x < F32(0) else far
    return near if size < F32(0.625) else signed
