"""What low-rank adapters add to rows, against NumPy in double precision; no other row changes the bits."""

from __future__ import annotations

import numpy as np
from graphml_cpu.layouts import low_rank_scratch_bytes
from numpy.typing import NDArray

from tests.cpu.kernels.running import THREADS, kernel, run
from tests.looped import looped

Floats = NDArray[np.float32]


Adapter = tuple[Floats, Floats, Floats]
"""a, b, factors."""


def add_low_rank(
    total: Floats, x: Floats, adapters: list[Adapter], threads: int, inplace: bool = True
) -> Floats:
    """The rows of total with the adapters' parts, and one more that must stay as it is."""
    (rows, n), k, count = total.shape, x.shape[1], len(adapters)
    ranks = [len(a) for a, _, _ in adapters]
    table = np.array([[f.ctypes.data, a.ctypes.data, b.ctypes.data, len(a)] for a, b, f in adapters])
    low = np.full((rows, sum(ranks)), 9, np.float32)
    scratch = np.zeros(low_rank_scratch_bytes(max(ranks), count, rows), np.uint8)
    y = np.full((rows + 1, n), 99, np.float32)
    if inplace:
        y[:rows] = total
    run(kernel("products.low_rank", "make_low_rank_down"), threads, table=table, count=count, x=x, low=low,
        k=k, scratch=scratch, rows=rows)  # fmt: skip
    run(kernel("products.low_rank", "make_low_rank_up"), threads, total=y if inplace else total, table=table,
        count=count, low=low, y=y, n=n, rank=max(ranks), scratch=scratch, rows=rows)  # fmt: skip
    assert (y[rows] == 99).all()
    return y[:rows]


def numbers(rows: int, n: int, k: int, *ranks: int) -> tuple[Floats, Floats, list[Adapter]]:
    """The total, x and adapters of these ranks; row i has a factor of adapter i modulo their number alone."""
    random = np.random.default_rng(n + k)
    total, x = (random.standard_normal(shape, np.float32) for shape in ((rows, n), (rows, k)))
    adapters = []
    for i, rank in enumerate(ranks):
        a, b, factors = (
            random.standard_normal(shape, np.float32) for shape in ((rank, k), (n, rank), (rows,))
        )
        factors[np.arange(rows) % len(ranks) != i] = 0
        adapters.append((a, b, factors))
    return total, x, adapters


@looped(
    "sizes",
    [
        (1, 192, 576, 16),
        (9, 33, 70, 5),
        (32, 576, 64, 16, 16, 8, 32),
        (7, 5, 9, 40, 3),
        (3, 20, 8, 1, 2, 3, 4),
    ],
)
@looped("both", [False, True])
def test_rows_with_a_factor_get_what_their_adapters_add(sizes: tuple[int, ...], both: bool) -> None:
    total, x, adapters = numbers(*sizes)
    if both:  # every third row has two adapters, the one before it none
        total, x, adapters = numbers(*sizes, 7)
        adapters[0][2][::3] = 0.5
        adapters[-1][2][2::3] = adapters[0][2][2::3] = 0
    want = total.astype(float)
    for a, b, factors in adapters:
        want += factors[:, None].astype(float) * (x.astype(float) @ a.T.astype(float)) @ b.T
    alone = np.logical_and.reduce([factors == 0 for _, _, factors in adapters])
    for threads in THREADS:
        for inplace in (True, False):
            got = add_low_rank(total, x, adapters, threads, inplace)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
            np.testing.assert_array_equal(got[alone], total[alone])


def test_a_row_has_the_same_bits_in_any_company() -> None:
    total, x, adapters = numbers(23, 70, 90, 19, 4)
    alone = [
        add_low_rank(total[i : i + 1], x[i : i + 1], [(a, b, factors[i : i + 1])], 1)
        for i in range(len(x))
        for a, b, factors in [adapters[i % 2]]
    ]
    for begin, count in ((0, 2), (3, 5), (1, 16), (0, 23)):
        some = slice(begin, begin + count)
        for threads in THREADS:
            got = add_low_rank(total[some], x[some], [(a, b, f[some]) for a, b, f in adapters], threads)
            np.testing.assert_array_equal(got, np.concatenate(alone[some]))
