"""Elementwise kernels against float64: every op, any length, strides, in place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.cpu.kernels.running import THREADS, kernel, run
from tests.looped import looped

LENGTHS = [1, 7, 16, 33, 256, 257, 1536]
_erf = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


# Formula in float64 and the error allowed: (relative, absolute). What `graphml_cpu.simd.math` says, plus a
# rounding of what goes in and out; gelu's argument of exp has a rounding of its own, as large as the
# argument.
UNARY: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "neg": (np.negative, 0, 0),
    "abs": (np.abs, 0, 0),
    "sqr": (np.square, 6e-8, 0),
    "sqrt": (lambda x: np.sqrt(np.maximum(x, 0)), 6e-8, 0),
    "exp": (np.exp, 2.4e-7, 1e-44),
    "log": (lambda x: np.log(np.maximum(x, 0)), 2.4e-7, 0),
    "floor": (np.floor, 0, 0),
    "round": (np.rint, 0, 0),
    "tanh": (np.tanh, 3.6e-7, 0),
    "sigmoid": (sigmoid, 5e-7, 1e-38),
    "relu": (lambda x: np.maximum(x, 0), 0, 0),
    "silu": (lambda x: x * sigmoid(x), 5e-7, 1e-36),
    "gelu": (lambda x: x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)), 4e-6, 1e-7),
    "gelu_erf": (lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))), 3e-7, 4e-7),
    "gelu_quick": (lambda x: x * sigmoid(1.702 * x), 4e-6, 1e-7),
    "softplus": (lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), 5e-7, 1e-7),
    "erf": (_erf, 2.4e-7, 0),
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "less": np.less,
    "less_equal": np.less_equal,
    "equal": np.equal,
}
OF_POSITIVE = ("sqrt", "log")
GLU: dict[str, Callable[[Any], Any]] = {
    "swiglu": UNARY["silu"][0],
    "geglu": UNARY["gelu"][0],
    "geglu_erf": UNARY["gelu_erf"][0],
    "geglu_quick": UNARY["gelu_quick"][0],
    "reglu": UNARY["relu"][0],
}


def rows_of(n: int, rows: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((rows, n)) * 4).astype(np.float32)


def unary(op: str, x: np.ndarray, nth: int = 1) -> np.ndarray:
    rows, n = x.shape
    out = np.full((rows, n + 2), 5, np.float32)
    run(kernel("elementwise.operations", "make_unary", op), nth, x=x, out=out, n=n, x_stride=n * 4,
        out_stride=(n + 2) * 4, rows=rows)  # fmt: skip
    assert (out[:, n:] == 5).all()
    return out[:, :n]


@pytest.mark.parametrize("op", UNARY)
def test_unary_is_float64s_within_its_error(op: str) -> None:
    function, relative, absolute = UNARY[op]
    for n in LENGTHS:
        x = rows_of(n, 3, n)
        if op in OF_POSITIVE:
            x = np.abs(x)
        for nth in THREADS:
            np.testing.assert_allclose(unary(op, x, nth), function(x.astype(np.float64)), relative, absolute)


@looped("op", UNARY)
def test_unary_over_the_whole_range(op: str) -> None:
    function, relative, absolute = UNARY[op]
    x = np.linspace(-100, 88, 40001, dtype=np.float32)[None]
    if op in OF_POSITIVE:
        x = np.abs(x)
    with np.errstate(over="ignore", divide="ignore"):
        wanted = function(x.astype(np.float64))
    np.testing.assert_allclose(unary(op, x), wanted, relative, absolute)


@looped("op", UNARY)
def test_unary_keeps_nan_and_takes_infinity(op: str) -> None:
    x = np.array([[np.nan, np.inf, 200.0, -200.0, 0.0]], np.float32)
    got = unary(op, np.abs(x) if op in OF_POSITIVE else x)[0]
    assert np.isnan(got[0]) or op == "relu"
    limits = {"neg": -np.inf, "tanh": 1, "sigmoid": 1, "erf": 1}
    assert got[1] == limits.get(op, np.inf)
    assert not np.isnan(got[2:]).any()


@looped("op", BINARY)
@looped("n", LENGTHS)
def test_binary_with_a_row_for_each_and_one_for_all(op: str, n: int) -> None:
    a, b = rows_of(n, 5), rows_of(n, 5, 1)
    made = kernel("elementwise.operations", "make_binary", op)
    values = {"a": a, "n": n, "a_stride": n * 4, "rows": 5}
    for nth in THREADS:
        out = np.empty_like(a)
        run(made, nth, b=b, b_stride=n * 4, out=out, out_stride=n * 4, **values)
        np.testing.assert_array_equal(out, BINARY[op](a, b))
        run(made, nth, b=b, b_stride=0, out=out, out_stride=n * 4, **values)
        np.testing.assert_array_equal(out, BINARY[op](a, b[:1]))
    wanted = BINARY[op](a, b)
    run(made, 1, b=b, b_stride=n * 4, out=a, out_stride=n * 4, **values)
    np.testing.assert_array_equal(a, wanted)


@looped("op", BINARY)
@looped("n", LENGTHS)
def test_binary_with_one_number_per_row(op: str, n: int) -> None:
    a, b = rows_of(n, 5), rows_of(1, 5, 1)
    for nth in THREADS:
        out = np.empty_like(a)
        run(kernel("elementwise.operations", "make_binary_scalar", op), nth, a=a, b=b, out=out, n=n,
            a_stride=n * 4, b_rows=5, out_stride=n * 4, rows=5)  # fmt: skip
        np.testing.assert_array_equal(out, BINARY[op](a, b))


@pytest.mark.parametrize("period", [1, 2, 3])
def test_binary_with_numbers_that_begin_anew(period: int) -> None:
    a, b = rows_of(9, 6), rows_of(1, period, 1)
    for nth in THREADS:
        out = np.empty_like(a)
        run(kernel("elementwise.operations", "make_binary_scalar", "sub"), nth, a=a, b=b, out=out, n=9,
            a_stride=36, b_rows=period, out_stride=36, rows=6)  # fmt: skip
        np.testing.assert_array_equal(out, a - np.tile(b, (6 // period, 1)))


@pytest.mark.parametrize("op", [*GLU, "swiglu_oai"])
def test_glu_of_two_tensors_and_of_one(op: str) -> None:
    for n in LENGTHS:
        both = rows_of(2 * n, 4, n)
        gate, up = both[:, :n].astype(np.float64), both[:, n:].astype(np.float64)
        if op == "swiglu_oai":
            low = np.minimum(gate, 7)
            wanted = low * sigmoid(1.702 * low) * (np.clip(up, -7, 7) + 1)
        else:
            wanted = GLU[op](gate) * up
        made = kernel("elementwise.operations", "make_glu", op)
        for nth in THREADS:
            out = np.empty((4, n), np.float32)
            run(made, nth, a=both, b=both.ctypes.data + n * 4, out=out, n=n, a_stride=n * 8,
                b_stride=n * 8, out_stride=n * 4, rows=4)  # fmt: skip
            np.testing.assert_allclose(out, wanted, 4e-6, 2e-6)


@looped("n", LENGTHS)
def test_scale_and_clamp(n: int) -> None:
    x = rows_of(n, 3)
    x[0, 0] = np.nan
    values = {"x": x, "n": n, "x_stride": n * 4, "out_stride": n * 4, "rows": 3}
    made = {op: kernel("elementwise.operations", "make_of_two_numbers", op) for op in ("scale", "clamp")}
    for nth in THREADS:
        out = np.empty_like(x)
        run(made["scale"], nth, out=out, p=0.3, q=-2.0, **values)
        np.testing.assert_array_equal(out, x * np.float32(0.3) + np.float32(-2.0))
        run(made["clamp"], nth, out=out, p=-1.5, q=2.5, **values)
        np.testing.assert_array_equal(out, np.clip(x, np.float32(-1.5), np.float32(2.5)))
        run(made["clamp"], nth, out=out, p=-math.inf, q=math.inf, **values)
        np.testing.assert_array_equal(out, x)


@pytest.mark.parametrize("single", [(False, False), (True, False), (False, True), (True, True)])
def test_where_reads_rows_over_and_over(single: tuple[bool, bool]) -> None:
    """Rows of 2 repeat, and begin anew after 3: row r meets row r // 2 % 3 of the mask, and r % 4 of b."""
    made = kernel("elementwise.choice", "make_where", *single)
    for n in LENGTHS:
        a, (of_mask, of_b) = rows_of(n, 12), (1 if one else n for one in single)
        chosen, other = rows_of(of_mask, 3, 1), rows_of(of_b, 4, 2)
        chosen[chosen < 1] = 0
        rows = np.arange(12)
        wanted = np.where(chosen[rows // 2 % 3] != 0, a, other[rows % 4])
        for nth in THREADS:
            out = a.copy()
            run(made, nth, mask=chosen, a=out, b=other, out=out, n=n, mask_repeats=2, mask_period=3,
                b_repeats=1, b_period=4, rows=12)  # fmt: skip
            np.testing.assert_array_equal(out, wanted)


@looped("n", LENGTHS)
def test_casts(n: int) -> None:
    x = rows_of(n, 3) * 1e9
    whole = np.clip(np.trunc(x.astype(np.float64)), -(2**31), 2**31 - 1).astype(np.int32)
    for nth in THREADS:
        to_whole, to_float = np.empty((3, n), np.int32), np.empty((3, n), np.float32)
        run(kernel("elementwise.choice", "make_cast", "i32"), nth, x=x, out=to_whole, n=n, rows=3)
        run(kernel("elementwise.choice", "make_cast", "f32"), nth, x=whole, out=to_float, n=n, rows=3)
        np.testing.assert_array_equal(to_whole, whole)
        np.testing.assert_array_equal(to_float, whole.astype(np.float32))
