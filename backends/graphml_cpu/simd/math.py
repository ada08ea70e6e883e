"""Exponential, logarithm, tanh, erf and the activations on vectors of float32.

Errors are stated in units in the last place (ulp) against float64, over all float32 and at every level, as
tests/cpu/test_simd_math.py measures them on some 250,000 numbers of every sign and exponent. NaN gives NaN,
infinities give their limits. Every function takes and gives a vector of any width.
"""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.simd.arithmetic import (
    absolute,
    bitcast_like_f32,
    bitcast_like_i32,
    copy_sign,
    fma,
    maximum,
    minimum,
    select,
    splat_like,
    to_float,
)

# Adding this leaves the integer part of a small number in the low bits of the sum.
_ROUNDER = 1.5 * 2.0**23
_ROUNDER_BITS = 0x4B400000


@inline
def exp(x: Any) -> Any:
    """e**x within 1.1 ulp; 0 below -104, infinity above 88.8; subnormal results are kept."""
    # The order of the operands lets NaN through: both give their second one for it.
    bounded = minimum(splat_like(x, 89.0), maximum(splat_like(x, -105.0), x))
    shifted = fma(bounded, splat_like(x, 1.4426950408889634), splat_like(x, _ROUNDER))
    n = bitcast_like_i32(shifted) - _ROUNDER_BITS
    n_float = shifted - _ROUNDER
    # ln 2 in two pieces, the first so short that n times it is exact.
    r = fma(n_float, splat_like(x, -0.693359375), bounded)
    r = fma(n_float, splat_like(x, 2.12194440e-4), r)
    p = fma(splat_like(x, 1.9875691500e-4), r, splat_like(x, 1.3981999507e-3))
    p = fma(p, r, splat_like(x, 8.3334519073e-3))
    p = fma(p, r, splat_like(x, 4.1665795894e-2))
    p = fma(p, r, splat_like(x, 1.6666665459e-1))
    p = fma(p, r, splat_like(x, 5.0000001201e-1))
    p = fma(p, r * r, r) + 1.0
    # 2**n in two factors: n itself reaches past the exponents of float32.
    half = n >> 1
    first = bitcast_like_f32((half + 127) << 23)
    second = bitcast_like_f32((n - half + 127) << 23)
    return p * first * second


@inline
def log(x: Any) -> Any:
    """The natural logarithm within 0.9 ulp; -infinity at 0, NaN below."""
    tiny = x < 1.17549435e-38
    scaled = select(tiny, x * 8388608.0, x)
    bits = bitcast_like_i32(scaled)
    # Mantissa in [sqrt(1/2), sqrt(2)), so that the logarithm near 1 loses nothing.
    shifted = bits - 0x3F3504F3
    exponent = to_float(shifted >> 23) - select(tiny, splat_like(x, 23.0), splat_like(x, 0.0))
    m = bitcast_like_f32((shifted & 0x7FFFFF) + 0x3F3504F3) - 1.0
    p = fma(splat_like(x, 7.0376836292e-2), m, splat_like(x, -1.1514610310e-1))
    p = fma(p, m, splat_like(x, 1.1676998740e-1))
    p = fma(p, m, splat_like(x, -1.2420140846e-1))
    p = fma(p, m, splat_like(x, 1.4249322787e-1))
    p = fma(p, m, splat_like(x, -1.6668057665e-1))
    p = fma(p, m, splat_like(x, 2.0000714765e-1))
    p = fma(p, m, splat_like(x, -2.4999993993e-1))
    p = fma(p, m, splat_like(x, 3.3333331174e-1))
    square = m * m
    p = p * m * square
    p = fma(exponent, splat_like(x, -2.12194440e-4), p)
    p = fma(square, splat_like(x, -0.5), p)
    result = fma(exponent, splat_like(x, 0.693359375), m + p)
    infinite = splat_like(x, float("inf"))
    result = select(x == infinite, infinite, result)
    result = select(x == 0.0, -infinite, result)
    return select((x < 0.0) | (x != x), splat_like(x, float("nan")), result)


@inline
def log1p_exp(x: Any) -> Any:
    """Softplus, log(1 + e**x), within 2 ulp, without overflow."""
    e = exp(-absolute(x))
    u = e + 1.0
    # What the rounding of 1 + e lost comes back as the first term of the series at u.
    return maximum(splat_like(x, 0.0), x) + (log(u) + (e - (u - 1.0)) / u)


@inline
def tanh(x: Any) -> Any:
    """tanh within 1.4 ulp."""
    z = x * x
    p = fma(splat_like(x, -5.70498872745e-3), z, splat_like(x, 2.06390887954e-2))
    p = fma(p, z, splat_like(x, -5.37397155531e-2))
    p = fma(p, z, splat_like(x, 1.33314422036e-1))
    p = fma(p, z, splat_like(x, -3.33332819422e-1))
    small = fma(p * z, x, x)
    magnitude = absolute(x)
    large = 1.0 - 2.0 / (exp(magnitude + magnitude) + 1.0)
    return select(magnitude < 0.625, small, copy_sign(large, x))


@inline
def sigmoid(x: Any) -> Any:
    """1 / (1 + e**-x) within 2.4 ulp."""
    e = exp(-absolute(x))
    # e**-x would overflow for x below -88, where e**x is still a number.
    return select(x < 0.0, e, splat_like(x, 1.0)) / (e + 1.0)


@inline
def silu(x: Any) -> Any:
    """x * sigmoid(x) within 3 ulp; below -87, where e**x is subnormal, within 2e-43."""
    e = exp(-absolute(x))
    # The order of the operands lets NaN through; -infinity times zero is no NaN here.
    bounded = maximum(splat_like(x, -110.0), x)
    return select(x < 0.0, bounded * e, bounded) / (e + 1.0)


@inline
def erf(x: Any) -> Any:
    """The error function within 1.2 ulp."""
    t = absolute(x)
    s = x * x
    # Two polynomials, below and above 475/512; the upper one is the logarithm of 1 - erf.
    r = fma(splat_like(x, -1.72853470e-5), t, splat_like(x, 3.83197126e-4))
    u = fma(splat_like(x, -3.88396438e-3), t, splat_like(x, 2.42546219e-2))
    r = fma(r, s, u)
    r = fma(r, t, splat_like(x, -1.06777877e-1))
    r = fma(r, t, splat_like(x, -6.34846687e-1))
    r = fma(r, t, splat_like(x, -1.28717512e-1))
    r = fma(r, t, -t)
    # Past 4 the result is 1, and the polynomial would turn back for huge arguments.
    large = select(t > 4.0, splat_like(x, 1.0), 1.0 - exp(r))
    p = fma(splat_like(x, -5.96761703e-4), s, splat_like(x, 4.99119423e-3))
    p = fma(p, s, splat_like(x, -2.67681349e-2))
    p = fma(p, s, splat_like(x, 1.12819925e-1))
    p = fma(p, s, splat_like(x, -3.76125336e-1))
    p = fma(p, s, splat_like(x, 1.28379166e-1))
    return select(t > 0.927734375, copy_sign(large, x), fma(p, x, x))


@inline
def gelu_erf(x: Any) -> Any:
    """GELU with the error function: 0.5 * x * (1 + erf(x / sqrt(2))), within 1.1e-7 * max(|x|, 1)."""
    return x * 0.5 * (erf(x * 0.7071067811865476) + 1.0)


@inline
def gelu_tanh(x: Any) -> Any:
    """GELU by tanh: 0.5 * x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x**3))), within 1.2e-7 * max(|x|, 1)."""
    # 0.5 * (1 + tanh(u)) is sigmoid(2 * u), which keeps its digits where tanh is near -1.
    inner = x * fma(x * x, splat_like(x, 0.044715), splat_like(x, 1.0))
    return x / (exp(inner * -1.5957691216057308) + 1.0)


@inline
def gelu_quick(x: Any) -> Any:
    """GELU by a sigmoid: x * sigmoid(1.702 * x), within 1.2e-7 * max(|x|, 1)."""
    return x / (exp(x * -1.702) + 1.0)
