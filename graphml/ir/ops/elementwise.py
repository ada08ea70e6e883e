"""Elementwise ops, with ggml's formulas and constants (ggml/src/ggml-cpu/ops.cpp, vec.h)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from graphml.ir.op import Array, Attributes, Op, number
from graphml.ir.ops.rules import broadcast, same_shape, singles, stretched_pairs


def _unary(name: str, meaning: Callable[[Array], Array]) -> Op:
    def reference(inputs: Sequence[Array], attributes: Attributes) -> Array:
        (x,) = inputs
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(meaning(x), dtype=np.float32)

    return Op(name, "elementwise", infer=same_shape, reference=reference, samples=singles, inplace=(0,),
              rowwise=(0,))  # fmt: skip


def _binary(name: str, meaning: Callable[[Array, Array], Array], commutative: bool = False) -> Op:
    def reference(inputs: Sequence[Array], attributes: Attributes) -> Array:
        a, b = inputs
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(meaning(a, b), dtype=np.float32)

    return Op(name, "elementwise", infer=broadcast, reference=reference, samples=stretched_pairs,
              inplace=(0,), commutative=commutative, rowwise=(0, 1))  # fmt: skip


def _sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(1.0 / (1.0 + np.exp(-x.astype(np.float64))))


def _erf(x: Array) -> Array:
    """A series near 0 and a continued fraction far out: Abramowitz and Stegun's has too few digits."""
    x = x.astype(np.float64)
    near = np.clip(x, -3.0, 3.0)
    term, total = near.copy(), near.copy()
    for n in range(1, 60):
        term = term * -(near * near) / n
        total += term / (2 * n + 1)
    far = np.maximum(np.abs(x), 2.0)
    fraction = far.copy()
    for n in range(60, 0, -1):
        fraction = far + n / 2 / fraction
    tail = np.sign(x) * (1.0 - np.exp(-far * far) / (fraction * np.sqrt(np.pi)))
    return np.asarray(np.where(np.abs(x) < 2.5, total * 2.0 / np.sqrt(np.pi), tail))


def _gelu(x: Array) -> Array:
    x = x.astype(np.float64)
    return np.asarray(0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * x * (1.0 + 0.044715 * x * x))))


def _scale(inputs: Sequence[Array], attributes: Attributes) -> Array:
    factor, offset = np.float32(number(attributes, "factor")), np.float32(number(attributes, "offset"))
    return np.asarray(inputs[0] * factor + offset)


def _clamp(inputs: Sequence[Array], attributes: Attributes) -> Array:
    low, high = np.float32(number(attributes, "low")), np.float32(number(attributes, "high"))
    return np.asarray(np.clip(inputs[0], low, high))


add = _binary("add", np.add, commutative=True)
sub = _binary("sub", np.subtract)
mul = _binary("mul", np.multiply, commutative=True)
div = _binary("div", np.divide)

neg = _unary("neg", np.negative)
absolute = _unary("abs", np.abs)
sqr = _unary("sqr", np.square)
sqrt = _unary("sqrt", np.sqrt)
exp = _unary("exp", np.exp)
tanh = _unary("tanh", np.tanh)
sigmoid = _unary("sigmoid", _sigmoid)
relu = _unary("relu", lambda x: np.maximum(x, 0))
silu = _unary("silu", lambda x: x * _sigmoid(x))
gelu = _unary("gelu", _gelu)
gelu_erf = _unary("gelu_erf", lambda x: 0.5 * x * (1.0 + _erf(x / np.sqrt(2.0))))
gelu_quick = _unary("gelu_quick", lambda x: x * _sigmoid(1.702 * x))
softplus = _unary("softplus", lambda x: np.where(x > 20.0, x, np.log1p(np.exp(np.minimum(x, 20.0)))))

scale = Op(
    "scale",
    "elementwise",
    infer=same_shape,
    reference=_scale,
    samples=singles,
    attributes={"factor": 1.0, "offset": 0.0},
    inplace=(0,),
    rowwise=(0,),
)
clamp = Op(
    "clamp",
    "elementwise",
    infer=same_shape,
    reference=_clamp,
    samples=singles,
    attributes={"low": float("-inf"), "high": float("inf")},
    inplace=(0,),
    rowwise=(0,),
)
