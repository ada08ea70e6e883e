"""What low-rank adapters add to rows, against NumPy in double precision; no other row changes the bits."""

from __future__ import annotations

import numpy as np
import pytest
from graphml_cpu.layouts import low_rank_scratch_bytes
from numpy.typing import NDArray

from tests.cpu.kernels.running import THREADS, kernel, run

Floats = NDArray[np.float32]


def add_low_rank(
    total: Floats, x: Floats, a: Floats, b: Floats, factors: Floats, threads: int, inplace: bool = True
) -> Floats:
    """The rows of total with the adapter's part, and one more that must stay as it is."""
    (rows, n), (rank, k) = total.shape, a.shape
    low = np.full((rows, rank), 9, np.float32)
    scratch = np.zeros(low_rank_scratch_bytes(rank, rows), np.uint8)
    y = np.full((rows + 1, n), 99, np.float32)
    if inplace:
        y[:rows] = total
    run(kernel("products.low_rank", "make_low_rank_down"), threads, x=x, a=a, factors=factors, low=low, k=k,
        rank=rank, scratch=scratch, rows=rows)  # fmt: skip
    run(kernel("products.low_rank", "make_low_rank_up"), threads, total=y if inplace else total,
        factors=factors, low=low, b=b, y=y, n=n, rank=rank, scratch=scratch, rows=rows)  # fmt: skip
    assert (y[rows] == 99).all()
    return y[:rows]


def numbers(rows: int, n: int, k: int, rank: int) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    random = np.random.default_rng(n + k)
    shapes = (rows, n), (rows, k), (rank, k), (n, rank), (rows,)
    total, x, a, b, factors = (random.standard_normal(shape, np.float32) for shape in shapes)
    return total, x, a, b, factors


@pytest.mark.parametrize("sizes", [(1, 192, 576, 16), (9, 33, 70, 5), (32, 576, 64, 16), (7, 5, 9, 40)])
@pytest.mark.parametrize("every", [1, 3])
def test_rows_with_a_factor_get_what_the_adapter_adds(sizes: tuple[int, ...], every: int) -> None:
    total, x, a, b, factors = numbers(*sizes)
    factors[np.arange(len(factors)) % every != 0] = 0
    low = factors[:, None].astype(float) * (x.astype(float) @ a.T.astype(float))
    want = total + low @ b.T
    for threads in THREADS:
        for inplace in (True, False):
            got = add_low_rank(total, x, a, b, factors, threads, inplace)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
            np.testing.assert_array_equal(got[factors == 0], total[factors == 0])


def test_a_row_has_the_same_bits_in_any_company() -> None:
    total, x, a, b, factors = numbers(23, 70, 90, 19)
    alone = [add_low_rank(total[i : i + 1], x[i : i + 1], a, b, factors[i : i + 1], 1) for i in range(len(x))]
    for begin, count in ((0, 2), (3, 5), (1, 16), (0, 23)):
        some = slice(begin, begin + count)
        for threads in THREADS:
            got = add_low_rank(total[some], x[some], a, b, factors[some], threads)
            np.testing.assert_array_equal(got, np.concatenate(alone[some]))
