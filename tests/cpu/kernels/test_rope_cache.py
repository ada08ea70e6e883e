"""Rope tables, rotation in both modes, and writing rows into cells of every type."""

from __future__ import annotations

import numpy as np

from graphml import settings
from graphml.ir.cache_types import CACHE_DTYPES
from graphml.ir.dtype import dtype
from tests.cpu.kernels.attention_reference import recall, store
from tests.cpu.kernels.running import THREADS, kernel, run
from tests.looped import looped

DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}
BLOCKS = {name: dtype(name).block_bytes for name in CACHE_DTYPES if dtype(name).block_elements > 1}


def empty_cache(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Cells that hold something, to see what is not written."""
    if dtype in DTYPES:
        return np.full(shape, 3, DTYPES[dtype])
    return np.full((*shape[:-1], shape[-1] // 32 * BLOCKS[dtype]), 3, np.uint8)


def table_of(positions: np.ndarray, frequencies: np.ndarray, scale: float = 1.0, nth: int = 1) -> np.ndarray:
    out = np.full((len(positions), len(frequencies), 2), np.nan, np.float32)
    run(kernel("positions.rope", "make_rope_table"), nth, positions=positions.astype(np.int32),
        frequencies=frequencies, scale=scale, out=out, n_half=len(frequencies),
        rows=len(positions))  # fmt: skip
    return out


def rotated(x: np.ndarray, table: np.ndarray, mode: str) -> np.ndarray:
    """x [rows, heads, d] rotated, in float64."""
    half = table.shape[1]
    c, s = (table[:, None, :, part].astype(np.float64) for part in (0, 1))
    first = slice(0, 2 * half, 2) if mode == "norm" else slice(0, half)
    second = slice(1, 2 * half, 2) if mode == "norm" else slice(half, 2 * half)
    y = x.astype(np.float64)
    a, b = y[..., first].copy(), y[..., second].copy()
    y[..., first], y[..., second] = a * c - b * s, a * s + b * c
    return y


@looped("n_half", [1, 3, 8, 16, 20, 32, 64])
def test_table_is_exact_for_positions_up_to_a_million(n_half: int) -> None:
    positions = np.array([0, 1, 2, 7, 511, 4096, 65537, 999_999, 1_000_000])
    frequencies = 10000.0 ** -(np.arange(n_half) / n_half)
    angle = positions[:, None] * frequencies
    wanted = np.stack([np.cos(angle), np.sin(angle)], -1)
    for nth in THREADS:
        np.testing.assert_allclose(
            table_of(positions, frequencies, 1.25, nth), wanted * 1.25, rtol=0, atol=1e-7
        )


@looped("mode", ["norm", "neox"])
@looped(("d", "n_rot"), [(64, 64), (128, 128), (80, 32), (80, 20), (6, 6), (16, 2), (40, 40)])
def test_rope_turns_pairs_and_copies_the_rest(mode: str, d: int, n_rot: int) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((5, 3, d)).astype(np.float32)
    table = table_of(np.array([0, 3, 4, 77, 1000]), 10000.0 ** -(np.arange(n_rot // 2) / (n_rot // 2)))
    wanted = rotated(x, table, mode)
    for nth in THREADS:
        out = np.full((5, 3 * d + 5), 9, np.float32)
        values = {
            "table": table,
            "n_head": 3,
            "head_dim": d,
            "n_rot": n_rot,
            "x_stride": 3 * d * 4,
            "rows": 5,
        }
        run(
            kernel("positions.rope", "make_rope", mode),
            nth,
            x=x,
            out=out,
            out_stride=(3 * d + 5) * 4,
            **values,
        )
        np.testing.assert_allclose(out[:, : 3 * d].reshape(x.shape), wanted, rtol=0, atol=5e-7)
        assert (out[:, 3 * d :] == 9).all()
        same = x.copy()
        run(
            kernel("positions.rope", "make_rope", mode), nth, x=same, out=same, out_stride=3 * d * 4, **values
        )
        np.testing.assert_array_equal(same, out[:, : 3 * d].reshape(x.shape))


# At other levels fewer types are written so: how each is written is tested by itself.
ROTATED = ("f16", "q8_0") if settings.cpu_level() else (*DTYPES, *BLOCKS)


@looped("mode", ["norm", "neox"])
@looped(
    ("dtype", "d", "n_rot"),
    [(dtype, *sizes) for dtype in DTYPES for sizes in ((64, 64), (80, 20), (6, 4)) if dtype in ROTATED]
    + [(dtype, *sizes) for dtype in BLOCKS for sizes in ((64, 64), (96, 20), (1024, 8)) if dtype in ROTATED],
)
def test_rope_cache_write_is_rope_then_cache_write(mode: str, dtype: str, d: int, n_rot: int) -> None:
    random = np.random.default_rng(1)
    x = random.standard_normal((4, 3, d)).astype(np.float32)
    table = table_of(np.array([1, 2, 3, 100]), 100.0 ** -(np.arange(n_rot // 2) / (n_rot // 2)))
    cells = np.array([6, 0, 8, 6], np.int32)
    y = np.empty_like(x)
    values = {"table": table, "n_head": 3, "head_dim": d, "n_rot": n_rot, "x_stride": 3 * d * 4, "rows": 4}
    run(kernel("positions.rope", "make_rope", mode), 1, x=x, out=y, out_stride=3 * d * 4, **values)
    empty = empty_cache(dtype, (8, 3, d))
    wanted, got = empty.copy(), empty.copy()
    for row, cell in enumerate(cells):
        if cell < 8:
            wanted[cell] = store(y[row], dtype)
    run(
        kernel("positions.rope", "make_rope_cache_write", mode, dtype, True),
        2,
        x=x,
        cells=cells,
        cache=got,
        n_cells=8,
        **values,
    )
    np.testing.assert_array_equal(got, wanted)


@looped("dtype", DTYPES)
@looped("n", [1, 5, 16, 33, 192, 300])
def test_cache_write_rounds_to_nearest_even(dtype: str, n: int) -> None:
    random = np.random.default_rng(n)
    x = (random.standard_normal((6, n)) * 10.0 ** random.integers(-9, 5, (6, n))).astype(np.float32)
    x.flat[:4] = [np.inf, -np.inf, 65520, 2.9802322e-08][: min(4, x.size)]
    x[5] = np.nan
    cells = np.array([4, -1, 0, 7, 2, 5], np.int32)
    wanted = empty_cache(dtype, (9, n))
    for row, cell in enumerate(cells):
        if cell >= 0:
            with np.errstate(over="ignore"):
                wanted[cell] = store(x[row], dtype)
    for nth in THREADS:
        got = empty_cache(dtype, (9, n))
        run(
            kernel("attention.cache_write", "make_cache_write", dtype, True),
            nth,
            x=x,
            cells=cells,
            cache=got,
            n=n,
            x_stride=n * 4,
            n_cells=9,
            rows=6,
        )
        np.testing.assert_array_equal(recall(got, dtype), recall(wanted, dtype))


@looped("dtype", BLOCKS)
@looped("n", [32, 96, 576])
def test_cache_write_quantises_as_the_format_does(dtype: str, n: int) -> None:
    random = np.random.default_rng(n)
    x = (random.standard_normal((8, n)) * 10.0 ** random.integers(-9, 5, (8, 1))).astype(np.float32)
    x[0, :32] = np.round(x[0, :32] * 1e5)
    x[0, 0], x[1, :32], x[2, :32] = 127, 0, 0  # halves, nothing, and a scale that is subnormal
    x[0, 1:32] = np.arange(31) + 0.5 - 15
    x[2, 0] = 1e-38
    x[3, 4:6], x[3, 6:32] = (7.5, -7.5), 0  # two of the same magnitude
    x[4, :32] = 3e38  # a scale beyond float16
    x[5, 3], x[5, -1] = np.nan, -np.inf
    cells = np.array([4, -1, 0, 7, 2, 5, 1, 3], np.int32)
    wanted = empty_cache(dtype, (9, n))
    with np.errstate(over="ignore"):
        for row, cell in enumerate(cells):
            if cell >= 0:
                wanted[cell] = store(x[row], dtype)
    values = {"x": x, "cells": cells, "n": n, "x_stride": n * 4, "n_cells": 9, "rows": len(x)}
    for nth in THREADS:
        got = empty_cache(dtype, (9, n))
        run(kernel("attention.cache_write", "make_cache_write", dtype, True), nth, cache=got, **values)
        fine = np.isfinite(recall(wanted, dtype)).reshape(9, -1, 32).all(axis=2).ravel()
        bytes_of = [blocks.reshape(len(fine), -1) for blocks in (got, wanted)]
        np.testing.assert_array_equal(bytes_of[0][fine], bytes_of[1][fine])
        np.testing.assert_array_equal(recall(got, dtype), recall(wanted, dtype))


def test_of_equal_cells_the_last_row_is_written_on_any_number_of_threads() -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((300, 520)).astype(np.float32)
    cells = random.integers(-2, 11, 300).astype(np.int32)
    wanted = np.full((9, 520), 7, np.float32)
    for row, cell in enumerate(cells):
        if 0 <= cell < 9:
            wanted[cell] = x[row]
    values = {"x": x, "cells": cells, "n": 520, "x_stride": 520 * 4, "n_cells": 9, "rows": 300}
    made = kernel("attention.cache_write", "make_cache_write", "f32", True)
    for nth in (1, 2, 7):
        got = np.full((9, 520), 7, np.float32)
        run(made, nth, cache=got, **values)
        np.testing.assert_array_equal(got, wanted)
