"""The experts' weights and the weighted sum of their outputs, against NumPy in double precision."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cpu.kernels.running import THREADS, kernel, run
from tests.looped import looped

ROWS = 5


@looped("n", [1, 16, 100, 576, 1025])
@looped("n_used", [1, 2, 8])
def test_the_weighted_sum(n: int, n_used: int) -> None:
    random = np.random.default_rng(n)
    y = random.standard_normal((ROWS, n_used, n), np.float32)
    weights = random.random((ROWS, n_used), np.float32)
    want = np.einsum("run,ru->rn", y.astype(np.float64), weights.astype(np.float64))
    for nth in THREADS:
        out = np.full((ROWS + 1, n), 99, np.float32)
        run(kernel("experts.combine", "make_combine_experts"), nth, y=y, weights=weights, out=out,
            n_used=n_used, n=n, rows=ROWS)  # fmt: skip
        np.testing.assert_allclose(out[:ROWS], want, rtol=1e-5, atol=1e-5)
        assert (out[ROWS] == 99).all()


@pytest.mark.parametrize(("low", "high"), [(6e-5, np.inf), (0.9, 1.1), (5.0, 9.0)])
def test_the_normalised_weights(low: float, high: float) -> None:
    random = np.random.default_rng(1)
    x = random.random((ROWS, 12), np.float32)
    x[1] = 0
    x[2, 3] = np.nan
    ids = np.stack([random.permutation(12)[:3] for _ in range(ROWS)]).astype(np.int32)
    ids[2] = [0, 3, 5]
    chosen = np.take_along_axis(x, ids, 1)
    want = chosen / np.clip(chosen.sum(1, keepdims=True), low, high)
    for nth in THREADS:
        out = np.full((ROWS + 1, 3), 99, np.float32)
        run(kernel("experts.combine", "make_gather_normalise"), nth, x=x, ids=ids, out=out, n=12, k=3,
            low=low, high=high, rows=ROWS)  # fmt: skip
        np.testing.assert_allclose(out[:ROWS], want, rtol=1e-6)
        assert (out[ROWS] == 99).all()
