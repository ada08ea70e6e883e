"""Softmax and sums of rows against float64: any length, strides, in place, and what is not a number."""

from __future__ import annotations

import numpy as np

from tests.cpu.kernels.running import THREADS, kernel, run
from tests.looped import looped

LENGTHS = [1, 2, 7, 16, 33, 64, 128, 257, 5000]


def rows_of(n: int, rows: int) -> np.ndarray:
    return (np.random.default_rng(n).standard_normal((rows, n)) * 4).astype(np.float32)


def softmax(x: np.ndarray, nth: int = 1) -> np.ndarray:
    rows, n = x.shape
    out = np.full((rows, n + 3), 5, np.float32)
    made = kernel("reductions.reduce", "make_softmax")
    run(made, nth, x=x, out=out, n=n, x_stride=n * 4, out_stride=(n + 3) * 4, rows=rows)
    assert (out[:, n:] == 5).all()
    return out[:, :n]


def exact_softmax(x: np.ndarray) -> np.ndarray:
    weight = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True).astype(np.float64))
    return np.asarray(weight / weight.sum(axis=1, keepdims=True))


@looped("n", LENGTHS)
def test_softmax_is_float64s_within_rounding(n: int) -> None:
    x = rows_of(n, 5)
    relative = 2e-6 * max(1, n / 1000)  # the sum's rounding
    for nth in THREADS:
        np.testing.assert_allclose(softmax(x, nth), exact_softmax(x), relative, 1e-30)


def test_softmax_in_place_and_far_from_zero() -> None:
    x = rows_of(33, 4)
    x[1] += 30000
    x[2] -= 30000
    x[3] = [-200.0] * 32 + [-100.0]  # below zero, as the lanes past the end are not
    wanted = exact_softmax(x)
    run(kernel("reductions.reduce", "make_softmax"), x=x, out=x, n=33, x_stride=132, out_stride=132, rows=4)
    np.testing.assert_allclose(x, wanted, 2e-6, 1e-30)


def test_softmax_of_infinities_and_nan() -> None:
    x = np.zeros((4, 19), np.float32)
    x[0, 3:] = -np.inf
    x[1, 3] = np.inf
    x[2] = -np.inf
    x[3, 0] = np.nan
    got = softmax(x)
    np.testing.assert_allclose(got[0], [1 / 3] * 3 + [0] * 16, 1e-6)
    assert np.isnan(got[1:]).all()


@looped("n", LENGTHS)
def test_sum_is_float64s_within_rounding(n: int) -> None:
    x = rows_of(n, 5)
    for nth in THREADS:
        out = np.full(6, 5, np.float32)
        run(
            kernel("reductions.reduce", "make_reduce_rows", "sum_rows"),
            nth,
            x=x,
            out=out,
            n=n,
            x_stride=n * 4,
            rows=5,
        )
        size = np.abs(x).sum(axis=1)
        assert (np.abs(out[:5] - x.astype(np.float64).sum(axis=1)) <= 2e-7 * size).all()
        assert out[5] == 5


def test_sum_keeps_infinity_and_nan() -> None:
    x = np.ones((2, 40), np.float32)
    x[0, 39], x[1, 39] = np.inf, np.nan
    out = np.empty(2, np.float32)
    run(kernel("reductions.reduce", "make_reduce_rows", "sum_rows"), x=x, out=out, n=40, x_stride=160, rows=2)
    assert out[0] == np.inf
    assert np.isnan(out[1])
