"""The largest elements of rows and elements by number against NumPy: ties, NaN, numbers out of range."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cpu.kernels.running import THREADS, kernel, run
from tests.looped import looped


def top_k(x: np.ndarray, k: int, nth: int = 1) -> np.ndarray:
    out = np.full((len(x) + 1, k), -7, np.int32)
    made = kernel("indexing.top_k", "make_top_k")
    run(made, nth, x=x, out=out, n=x.shape[1], k=k, x_stride=x.strides[0], rows=len(x))
    assert (out[-1] == -7).all()
    return out[:-1]


def exact_top_k(x: np.ndarray, k: int) -> np.ndarray:
    return np.argsort(-x, axis=1, kind="stable")[:, :k]


@looped(("n", "k"), [(1, 1), (2, 2), (8, 2), (12, 3), (60, 4), (64, 8), (128, 8), (512, 10), (9000, 40)])
def test_top_k_is_a_stable_sort(n: int, k: int) -> None:
    random = np.random.default_rng(n)
    for x in (random.standard_normal((5, n)), random.integers(0, 4, (5, n)), np.zeros((3, n))):
        rows = np.ascontiguousarray(x, np.float32)
        for nth in THREADS:
            np.testing.assert_array_equal(top_k(rows, k, nth), exact_top_k(rows, k))


@pytest.mark.parametrize("order", [1, -1])
def test_top_k_of_sorted_rows_is_all_or_nothing(order: int) -> None:
    x = np.arange(100, dtype=np.float32)[None, ::order].copy()
    np.testing.assert_array_equal(top_k(x, 100), exact_top_k(x, 100))
    np.testing.assert_array_equal(top_k(x, 5), exact_top_k(x, 5))


def test_top_k_puts_nan_last_and_infinities_first_and_last() -> None:
    x = np.random.default_rng(0).standard_normal((6, 70)).astype(np.float32)
    x[0, ::2] = np.nan
    x[1] = np.nan
    x[2, 60:] = np.inf
    x[3] = -np.inf
    x[4, :69] = np.nan
    x[5, [1, 5]], x[5, 2:5] = -np.inf, np.nan
    for k in (1, 8, 36, 70):
        np.testing.assert_array_equal(top_k(x, k), exact_top_k(x, k))


@pytest.mark.parametrize(("n", "k"), [(1, 1), (8, 2), (60, 17)])
def test_gather_takes_and_gives_zero_outside(n: int, k: int) -> None:
    random = np.random.default_rng(n)
    x = random.standard_normal((5, n + 2)).astype(np.float32)
    ids = random.integers(-2, n + 2, (5, k)).astype(np.int32)
    ids[0, 0], ids[1, 0] = -(2**31), 2**31 - 1
    known = (ids >= 0) & (ids < n)
    wanted = np.where(known, np.take_along_axis(x[:, :n], np.where(known, ids, 0), axis=1), np.float32(0))
    for nth in THREADS:
        out = np.full((6, k), 5, np.float32)
        values = {"n": n, "k": k, "x_stride": (n + 2) * 4, "rows": 5}
        run(kernel("indexing.top_k", "make_gather"), nth, x=x, ids=ids, out=out, **values)
        np.testing.assert_array_equal(out[:5], wanted)
        assert (out[5] == 5).all()
