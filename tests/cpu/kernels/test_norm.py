"""Norms against float64, for rows of any length, strided, in place, shared among threads."""

from __future__ import annotations

import numpy as np

from tests.cpu.kernels.running import THREADS, kernel, run
from tests.looped import looped

LENGTHS = [1, 3, 16, 31, 64, 65, 130, 576, 1000, 4096]


def rows_of(n: int, rows: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((rows, n)) * 3 + 0.5).astype(np.float32)


def expected(kind: str, x: np.ndarray, eps: float) -> np.ndarray:
    x = x.astype(np.float64)
    if kind == "l2":
        return x / np.maximum(np.sqrt((x * x).sum(1, keepdims=True)), eps)
    if kind == "layer":
        x = x - x.mean(1, keepdims=True)
    return x / np.sqrt((x * x).mean(1, keepdims=True) + eps)


@looped("n", LENGTHS)
@looped("kind", ["rms", "layer"])
@looped(("weighted", "biased"), [(False, False), (True, False), (True, True), (False, True)])
def test_norm_is_float64s_within_rounding(kind: str, n: int, weighted: bool, biased: bool) -> None:
    made = kernel("norms.norm", f"make_{kind}_norm")
    x = rows_of(n, 5)
    weight, bias = rows_of(n, 1, 1)[0], rows_of(n, 1, 2)[0]
    wanted = expected(kind, x, 1e-5) * (weight if weighted else 1) + (bias if biased else 0)
    for nth in THREADS:
        out = np.full((5, n + 3), 7, np.float32)
        run(made, nth, x=x, weight=weight if weighted else 0, bias=bias if biased else 0, out=out, n=n,
        eps=1e-5,
            x_stride=n * 4, out_stride=(n + 3) * 4, rows=5)  # fmt: skip
        np.testing.assert_allclose(out[:, :n], wanted, rtol=2e-6, atol=2e-6)
        assert (out[:, n:] == 7).all()


@looped("n", LENGTHS)
def test_l2_norm_is_float64s_within_rounding(n: int) -> None:
    x = rows_of(n, 4)
    x[2] = 0
    out = np.empty_like(x)
    run(
        kernel("norms.norm", "make_l2_norm"),
        2,
        x=x,
        out=out,
        n=n,
        eps=1e-6,
        x_stride=n * 4,
        out_stride=n * 4,
        rows=4,
    )
    np.testing.assert_allclose(out, expected("l2", x, 1e-6), rtol=2e-6, atol=1e-7)


def test_norm_in_place() -> None:
    x = rows_of(100, 3)
    wanted = expected("rms", x, 1e-6)
    run(kernel("norms.norm", "make_rms_norm"), 1, x=x, weight=0, bias=0, out=x, n=100, eps=1e-6, x_stride=400,
        out_stride=400, rows=3)  # fmt: skip
    np.testing.assert_allclose(x, wanted, rtol=2e-6)


def test_long_rows_keep_their_digits() -> None:
    x = (np.random.default_rng(0).standard_normal((1, 16384)) * 0.01 + 1).astype(np.float32)
    out = np.empty_like(x)
    run(kernel("norms.norm", "make_rms_norm"), 1, x=x, weight=0, bias=0, out=out, n=16384, eps=0, x_stride=0,
    out_stride=0,
        rows=1)  # fmt: skip
    np.testing.assert_allclose(out, expected("rms", x, 0), rtol=1e-6)


def test_layer_norm_of_small_differences_on_a_large_mean() -> None:
    x = (np.random.default_rng(0).integers(-8, 8, (1, 37)) + 4096).astype(np.float32)
    out = np.empty_like(x)
    run(kernel("norms.norm", "make_layer_norm"), 1, x=x, weight=0, bias=0, out=out, n=37, eps=0, x_stride=0,
    out_stride=0,
        rows=1)  # fmt: skip
    np.testing.assert_allclose(out, expected("layer", x, 0), atol=2e-4)
