"""Writing rows into the cells of a cache, rounded to the cache's element type.

Knows cells as numbers; knows nothing of sequences, blocks or what the rows mean.
"""

from __future__ import annotations

from collections.abc import Callable

from graphml_cpu.compiler import Address, Dim, Int, RunAddress
from graphml_cpu.kernels.share import share
from graphml_cpu.kernels.storage import make_storage
from graphml_cpu.simd import F32, WIDTH, load, load_i32, load_partial


def make_cache_write(dtype: str) -> Callable[..., None]:
    """cache[cells[t]] = x[t], rounded to nearest even; `dtype` "f32", "f16" or "bf16".

    x float32 [rows, n], rows `x_stride` bytes apart; cells int32 [rows], a negative one is not written; cache
    `dtype` [n_cells, n].
    """
    storage = make_storage(dtype)
    item_bytes, store_all, store_some = storage.item_bytes, storage.store, storage.store_partial
    # One unit of work: enough that two threads do not share a cache line's worth of trouble.
    piece = 8 * WIDTH

    def cache_write(
        ith: Int, nth: Int, x: Address, cells: Address, cache: RunAddress, n: Int, x_stride: Int, rows: Dim
    ) -> None:
        pieces = (n + piece - 1) // piece
        begin, end = share(ith, nth, rows * pieces)
        for unit in range(begin, end):
            row = unit // pieces
            first = (unit - row * pieces) * piece
            cell = load_i32(cells + row * 4)
            if cell >= 0:
                source, to = x + row * x_stride, cache + cell * n * item_bytes
                for i in range(first, min(first + piece, n), WIDTH):
                    if n - i >= WIDTH:
                        store_all(to + i * item_bytes, load(F32, source + i * 4))
                    else:
                        store_some(to + i * item_bytes, load_partial(F32, source + i * 4, n - i), n - i)

    return cache_write
