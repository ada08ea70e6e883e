"""Elementwise ops; activations with ggml's formulas and constants (ggml/src/ggml-cpu/ops.cpp, vec.h)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from graphml.errors import ShapeError
from graphml.ir.dtype import F32, I32
from graphml.ir.op import Array, Attributes, Op, Sample, Type, number, text
from graphml.ir.ops.rules import (
    ROWS,
    broadcast,
    f32,
    i32,
    same_shape,
    singles,
    some_of,
    stretched_pairs,
    want_float,
    want_stretch,
)

_INF, _NAN = float("inf"), float("nan")
_EQUALS = some_of(-1.5, 0.0, 1.0, 2.0, _INF, -_INF, _NAN)


def _unary(name: str, meaning: Callable[[Array], Array], samples: Callable[[], list[Sample]] = singles) -> Op:
    def reference(inputs: Sequence[Array], attributes: Attributes) -> Array:
        (x,) = inputs
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            return np.asarray(meaning(x), dtype=np.float32)

    return Op(name, "elementwise", infer=same_shape, reference=reference, samples=samples, inplace=(0,),
              rowwise=(0,))  # fmt: skip


def _binary(
    name: str,
    meaning: Callable[[Array, Array], Array],
    commutative: bool = False,
    samples: Callable[[], list[Sample]] = stretched_pairs,
) -> Op:
    def reference(inputs: Sequence[Array], attributes: Attributes) -> Array:
        a, b = inputs
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(meaning(a, b), dtype=np.float32)

    return Op(name, "elementwise", infer=broadcast, reference=reference, samples=samples,
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


def _positive(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Numbers of every size from 1e-30 to 1e30, some near 1, and zeros."""
    numbers = 10.0 ** generator.uniform(-30, 30, shape)
    near = 1 + generator.uniform(-1e-3, 1e-3, shape)
    return np.choose(generator.integers(0, 3, shape), [numbers, near, np.zeros(shape)]).astype(np.float32)


def _halves() -> list[Sample]:
    """Numbers half way between whole ones, too, and such as have no fraction."""
    fill = some_of(
        -2.5, -1.5, -0.5, -0.3, 0.5, 0.7, 1.5, 2.5, 8388607.5, -16777217.0, 1e20, _INF, -_INF, _NAN
    )
    return [*singles(), Sample((f32(ROWS, 64),), fill={0: fill})]


def _compared() -> list[Sample]:
    """Pairs of numbers of which many are equal, infinite or NaN, too."""
    shapes = [(f32(ROWS, 70), f32(ROWS, 70)), (f32(ROWS, 33), f32(33)), (f32(1, 9), f32(1))]
    return [*stretched_pairs(), *(Sample(pair, fill={0: _EQUALS, 1: _EQUALS}) for pair in shapes)]


def _infer_where(inputs: Sequence[Type], attributes: Attributes) -> Type:
    want_float(inputs)
    mask, a, b = inputs
    want_stretch(a, mask, "mask")
    want_stretch(a, b, "third operand")
    return a


def _where(inputs: Sequence[Array], attributes: Attributes) -> Array:
    mask, a, b = inputs
    return np.where(mask != 0, a, b)


def _where_samples() -> list[Sample]:
    fill = {0: some_of(0.0, -0.0, 1.0, 0.25, -3.0, _INF, _NAN, 1e-40), 1: _EQUALS, 2: _EQUALS}
    wide, deep = f32(ROWS, 70), f32(ROWS, 3, 16)
    shapes = [
        (wide, wide, wide), (f32(ROWS, 1), wide, f32(1)), (f32(70), wide, f32(ROWS, 1)),
        (f32(1), wide, f32(70)), (f32(ROWS, 1, 1), deep, f32(16)), (f32(3, 1), deep, f32(ROWS, 3, 1)),
        (f32(1, 3, 16), deep, f32(1)), (f32(ROWS, 1, 16), deep, f32(1, 3, 16)), (deep, deep, deep),
        (f32(3), f32(1, 3), f32(1, 3)),
    ]  # fmt: skip
    return [*(Sample(types, fill=fill) for types in shapes), Sample((wide, wide, wide), fill={0: fill[0]})]


def _infer_cast(inputs: Sequence[Type], attributes: Attributes) -> Type:
    x, to = inputs[0], text(attributes, "dtype")
    if (x.dtype, to) not in ((I32, "f32"), (F32, "i32")):
        raise ShapeError(f"wanted i32 to f32 or f32 to i32; got {x} to {to}")
    return Type(F32 if x.dtype is I32 else I32, x.shape)


def _cast(inputs: Sequence[Array], attributes: Attributes) -> Array:
    (x,) = inputs
    if x.dtype.kind == "i":
        return x.astype(np.float32)
    limits = np.iinfo(np.int32)
    whole = np.trunc(np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=limits.max, neginf=limits.min))
    return np.clip(whole, limits.min, limits.max).astype(np.int32)


def _whole(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Whole numbers of every size, and the largest."""
    numbers = generator.integers(-(2**31), 2**31, shape) >> generator.integers(0, 31, shape)
    return np.where(generator.random(shape) < 0.2, 2**31 - 1, numbers).astype(np.int32)


def _cast_samples() -> list[Sample]:
    extreme = some_of(0.0, -0.0, 0.99, -0.99, 2.5, -2.5, 1e7, 2147483520.0, 2.0**31, -(2.0**31), 3e9, -3e38,
                      _INF, -_INF, _NAN, 1e-40)  # fmt: skip
    shapes = ((ROWS, 1), (ROWS, 70), (ROWS,), (2, 3, 33))
    return [
        *(Sample((i32(*shape),), {"dtype": "f32"}, {0: _whole}) for shape in shapes),
        *(Sample((f32(*shape),), {"dtype": "i32"}, {0: extreme}) for shape in shapes),
    ]


add = _binary("add", np.add, commutative=True)
sub = _binary("sub", np.subtract)
mul = _binary("mul", np.multiply, commutative=True)
div = _binary("div", np.divide)
maximum = _binary("maximum", np.maximum, commutative=True, samples=_compared)
minimum = _binary("minimum", np.minimum, commutative=True, samples=_compared)
less = _binary("less", np.less, samples=_compared)
less_equal = _binary("less_equal", np.less_equal, samples=_compared)
equal = _binary("equal", np.equal, commutative=True, samples=_compared)

neg = _unary("neg", np.negative)
absolute = _unary("abs", np.abs)
sqr = _unary("sqr", np.square)
sqrt = _unary("sqrt", np.sqrt)
exp = _unary("exp", np.exp)
log = _unary("log", np.log, lambda: [*singles(), Sample((f32(ROWS, 64),), fill={0: _positive})])
floor = _unary("floor", np.floor, _halves)
round_even = _unary("round", np.rint, _halves)
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
where = Op("where", "elementwise", infer=_infer_where, reference=_where, samples=_where_samples,
           inplace=(1,), rowwise=(0, 1, 2))  # fmt: skip
cast = Op("cast", "elementwise", infer=_infer_cast, reference=_cast, samples=_cast_samples,
          attributes={"dtype": None}, rowwise=(0,))  # fmt: skip
