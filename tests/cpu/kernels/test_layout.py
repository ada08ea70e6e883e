"""Copies in another layout against NumPy, bit by bit."""

from __future__ import annotations

import itertools

import numpy as np

from tests.cpu.kernels.running import THREADS, kernel, run
from tests.looped import looped


def bits(*shape: int) -> np.ndarray:
    """Random bits: NaNs among them must come out as they went in."""
    return np.random.default_rng(sum(shape)).integers(0, 2**32, shape, np.uint32)


@looped("axes", list(itertools.permutations(range(4))))
@looped("shape", [(1, 1, 1, 1), (1, 1, 3, 5), (4, 6, 3, 2), (5, 2, 8, 33)])
def test_permute(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = bits(*shape)
    wanted = np.transpose(x, axes)
    for nth in THREADS:
        out = np.full(x.size + 16, 5, np.uint32)
        made = kernel("indexing.layout", "make_permute", *axes)
        run(made, nth, x=x, out=out, **{f"n{i}": n for i, n in enumerate(shape)})
        np.testing.assert_array_equal(out[: x.size].reshape(wanted.shape), wanted)
        assert (out[x.size :] == 5).all()


@looped(("n_a", "n_b"), [(1, 1), (5, 9), (16, 3), (40, 64)])
def test_concat(n_a: int, n_b: int) -> None:
    a, b = bits(5, n_a), bits(5, n_b)
    for nth in THREADS:
        out = np.full((6, n_a + n_b), 5, np.uint32)
        run(kernel("indexing.layout", "make_concat"), nth, a=a, b=b, out=out, n_a=n_a, n_b=n_b, rows=5)
        np.testing.assert_array_equal(out[:5], np.concatenate([a, b], axis=1))
        assert (out[5] == 5).all()


@looped(("start", "stop"), [(0, 1), (0, 40), (7, 24), (39, 40)])
def test_columns(start: int, stop: int) -> None:
    x, n = bits(5, 40), stop - start
    for nth in THREADS:
        out = np.full((6, n), 5, np.uint32)
        run(
            kernel("indexing.layout", "make_columns"),
            nth,
            x=x,
            out=out,
            start=start,
            n=n,
            x_stride=160,
            rows=5,
        )
        np.testing.assert_array_equal(out[:5], x[:, start:stop])
        assert (out[5] == 5).all()
