"""Writing rows into the cells of a cache, rounded to the cache's element type or quantised in its blocks.

Knows cells as numbers; knows nothing of sequences, blocks or what the rows mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml.ir.dtype import dtype as dtype_of
from graphml_cpu.compiler import Address, Dim, Int, RunAddress
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.attention.cache_elements import row_bytes
from graphml_cpu.kernels.formats import make_encode
from graphml_cpu.kernels.share import share
from graphml_cpu.kernels.storage import make_storage
from graphml_cpu.simd import F32, WIDTH, load, load_i32, load_partial


def make_write(dtype: str) -> Any:
    """An inline function `write(x, to, n)`: n float32, whole blocks, as a cache of `dtype` keeps them."""
    if dtype_of(dtype).block_elements > 1:
        return make_encode(dtype)
    storage = make_storage(dtype)
    item_bytes, store_all, store_some = storage.item_bytes, storage.store, storage.store_partial

    @inline
    def write(x: int, to: int, n: int) -> None:
        for i in range(0, n, WIDTH):
            if n - i >= WIDTH:
                store_all(to + i * item_bytes, load(F32, x + i * 4))
            else:
                store_some(to + i * item_bytes, load_partial(F32, x + i * 4, n - i), n - i)

    return write


@inline
def is_overwritten(cells: int, row: int, rows: int) -> bool:
    """Whether a later row has the cell of this one."""
    cell, other = load_i32(cells + row * 4), row + 1
    while other < rows and load_i32(cells + other * 4) != cell:
        other += 1
    return other < rows


def make_cache_write(dtype: str, looks: bool) -> Callable[..., None]:
    """cache[cells[t]] = x[t], rounded to nearest even or quantised; `dtype` one of `CACHE_DTYPES`.

    x float32 [rows, n], rows `x_stride` bytes apart, n whole blocks; cells int32 [rows], one outside
    0 .. n_cells - 1 is not written; cache `dtype` [n_cells, n]. looks: of equal cells the last row is
    written; without it cells that are written are distinct.
    """
    # One unit of work: enough that two threads do not share a cache line's worth of trouble; whole blocks.
    chunk = 8 * WIDTH
    chunk_bytes, write = row_bytes(dtype, chunk), make_write(dtype)
    block = dtype_of(dtype).block_elements
    block_bytes = row_bytes(dtype, block)

    def cache_write(
        ith: Int, nth: Int, x: Address, cells: Address, cache: RunAddress, n: Int, x_stride: Int,
        n_cells: Dim, rows: Dim,
    ) -> None:  # fmt: skip
        chunks = (n + chunk - 1) // chunk
        begin, end = share(ith, nth, rows * chunks)
        for unit in range(begin, end):
            row = unit // chunks
            first = (unit - row * chunks) * chunk
            cell = load_i32(cells + row * 4)
            if looks and is_overwritten(cells, row, rows):
                continue
            if 0 <= cell < n_cells:
                to = cache + cell * (n // block * block_bytes) + first // chunk * chunk_bytes
                write(x + row * x_stride + first * 4, to, min(chunk, n - first))

    return cache_write
