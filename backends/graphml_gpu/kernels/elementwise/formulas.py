"""The formulas of elementwise ops on one float32, by the names of the ops. Knows no arrays.

A NaN stays a NaN, and an infinity gives what the formula's limit is. Drivers may take floats for numbers and
make a max, which loses a NaN, of a comparison: `isnan` looks at bits, and decides first. Relative errors on
devices whose exp and log are within 2 units in the last place stay below 2e-6.
"""

from __future__ import annotations

import math

from graphml_gpu.language import Function, exp, f32, floor, function, isnan, log, round, select, sqrt, tanh

_GELU = 1.5957691216057308
"""2 * sqrt(2 / pi): twice what the tanh of gelu is taken of, as sigmoid(2 y) = (1 + tanh(y)) / 2."""


@function
def neg(x: f32) -> f32:
    """-x."""
    return -x


@function
def absolute(x: f32) -> f32:
    """|x|."""
    return abs(x)


@function
def sqr(x: f32) -> f32:
    """x * x."""
    return x * x


@function
def square_root(x: f32) -> f32:
    """The root of x; NaN below 0."""
    return sqrt(x)


@function
def exponential(x: f32) -> f32:
    """e to the power x."""
    return exp(x)


@function
def logarithm(x: f32) -> f32:
    """The natural logarithm. Near 1 by a series, since a device's log need only be exact to 5e-7 there."""
    s = (x - 1.0) / (x + 1.0)
    square = s * s
    near_1 = square * (0.33333333 + square * (0.2 + square * (0.14285715 + square * 0.11111111)))
    return select(isnan(x), x, select(abs(x - 1.0) < 0.3, 2.0 * s * (1.0 + near_1), log(x)))


@function
def round_down(x: f32) -> f32:
    """The largest whole number of at most x."""
    return floor(x)


@function
def round_even(x: f32) -> f32:
    """The nearest whole number, of two the even one."""
    return round(x)


@function
def hyperbolic_tangent(x: f32) -> f32:
    """The tanh of x."""
    return tanh(x)


@function
def sigmoid(x: f32) -> f32:
    """1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + exp(-x))


@function
def relu(x: f32) -> f32:
    """x above 0, else 0."""
    return select(isnan(x), x, select(x < 0.0, 0.0, x))


@function
def silu(x: f32) -> f32:
    """x * sigmoid(x)."""
    return x / (1.0 + exp(-x))


@function
def gelu(x: f32) -> f32:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), by the sigmoid: nothing cancels out."""
    return x / (1.0 + exp(-_GELU * x * (1.0 + 0.044715 * x * x)))


@function
def gelu_quick(x: f32) -> f32:
    """x * sigmoid(1.702 x)."""
    return x / (1.0 + exp(-1.702 * x))


@function
def erfc_above_0(x: f32) -> f32:
    """1 - erf(x) for x >= 0, to 1.2e-7 of itself (Press et al., Numerical Recipes, 6.2: erfcc)."""
    t = 1.0 / (1.0 + 0.5 * x)
    tail = t * (-0.82215223 + t * 0.17087277)
    tail = t * (0.27886807 + t * (-1.13520398 + t * (1.48851587 + tail)))
    tail = t * (1.00002368 + t * (0.37409196 + t * (0.09678418 + t * (-0.18628806 + tail))))
    return t * exp(-x * x - 1.26551223 + tail)


@function
def gelu_erf(x: f32) -> f32:
    """x / 2 * (1 + erf(x / sqrt(2)))."""
    half = 0.5 * erfc_above_0(abs(x) * 0.7071067811865476)
    return x * select(x < 0.0, half, 1.0 - half)


@function
def softplus(x: f32) -> f32:
    """log(1 + exp(x)): what is above 0 of x, and log(1 + y) of y = exp(-|x|)."""
    y = exp(-abs(x))
    near_0 = y * (1.0 - y * (0.5 - y * (0.33333333 - 0.25 * y)))
    return select(x > 0.0, x, 0.0) + select(y < 0.01, near_0, log(1.0 + y))


@function
def scale(x: f32, factor: f32, offset: f32) -> f32:
    """x * factor + offset."""
    return x * factor + offset


@function
def clamp(x: f32, low: f32, high: f32) -> f32:
    """x held between low and high."""
    return select(isnan(x), x, select(x < low, low, select(x > high, high, x)))


@function
def softcap(x: f32, factor: f32, limit: f32) -> f32:
    """limit * tanh(x * factor)."""
    return limit * tanh(x * factor)


@function
def add(a: f32, b: f32) -> f32:
    """a + b."""
    return a + b


@function
def sub(a: f32, b: f32) -> f32:
    """a - b."""
    return a - b


@function
def mul(a: f32, b: f32) -> f32:
    """a * b."""
    return a * b


@function
def div(a: f32, b: f32) -> f32:
    """a / b."""
    return a / b


# No `max` and `min` in these two: where b is one value for all, Intel's OpenCL for processors would read
# it at any address, for invocations that are all behind the last element.


@function
def maximum(a: f32, b: f32) -> f32:
    """The larger; NaN if one of them is."""
    return select(isnan(a), a, select(isnan(b), b, select(a > b, a, b)))


@function
def minimum(a: f32, b: f32) -> f32:
    """The smaller; NaN if one of them is."""
    return select(isnan(a), a, select(isnan(b), b, select(a < b, a, b)))


@function
def less(a: f32, b: f32) -> f32:
    """1 where a < b, else 0; 0 for NaN."""
    return select(isnan(a) or isnan(b), 0.0, select(a < b, 1.0, 0.0))


@function
def less_equal(a: f32, b: f32) -> f32:
    """1 where a <= b, else 0; 0 for NaN."""
    return select(isnan(a) or isnan(b), 0.0, select(a <= b, 1.0, 0.0))


@function
def equal(a: f32, b: f32) -> f32:
    """1 where a == b, else 0; 0 for NaN."""
    return select(isnan(a) or isnan(b), 0.0, select(a == b, 1.0, 0.0))


@function
def swiglu(gate: f32, up: f32) -> f32:
    """silu(gate) * up (Shazeer 2020, arXiv:2002.05202)."""
    return silu(gate) * up


@function
def swiglu_oai(gate: f32, up: f32) -> f32:
    """The gate of gpt-oss: alpha 1.702, limit 7."""
    held = clamp(gate, -math.inf, 7.0)
    return held / (1.0 + exp(-1.702 * held)) * (clamp(up, -7.0, 7.0) + 1.0)


@function
def geglu(gate: f32, up: f32) -> f32:
    """gelu(gate) * up."""
    return gelu(gate) * up


@function
def geglu_erf(gate: f32, up: f32) -> f32:
    """gelu_erf(gate) * up."""
    return gelu_erf(gate) * up


@function
def geglu_quick(gate: f32, up: f32) -> f32:
    """gelu_quick(gate) * up."""
    return gelu_quick(gate) * up


@function
def reglu(gate: f32, up: f32) -> f32:
    """relu(gate) * up."""
    return relu(gate) * up


def _by_op(*functions: object, **others: object) -> dict[str, Function]:
    by_name = {f.name: f for f in functions if isinstance(f, Function)}
    return by_name | {name: f for name, f in others.items() if isinstance(f, Function)}


UNARY = _by_op(
    neg, sqr, sigmoid, relu, silu, gelu, gelu_erf, gelu_quick, softplus,
    abs=absolute, sqrt=square_root, exp=exponential, log=logarithm, floor=round_down,
    round=round_even, tanh=hyperbolic_tangent,
)  # fmt: skip
"""Op name -> function of x."""

WITH_NUMBERS = _by_op(scale, clamp, softcap)
"""Op name -> function of x and two numbers."""

BINARY = _by_op(add, sub, mul, div, maximum, minimum, less, less_equal, equal)
"""Op name -> function of a and b."""

GLU = _by_op(swiglu, swiglu_oai, geglu, geglu_erf, geglu_quick, reglu)
"""Op name -> function of gate and up."""
