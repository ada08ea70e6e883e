"""The query heads of one key-value head against cells of a cache: scores of them, and sums of values.

Chooses the register tile for the heads at hand, so that each row of the cache is read once for all of them.
Knows addresses; knows nothing of positions or softmax.
"""

from __future__ import annotations

import math
from typing import Any

from graphml_cpu import target
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.attention.cache_elements import make_elements, row_bytes
from graphml_cpu.kernels.attention.tiles import TILE_CELLS, make_score_tile, make_weigh_tile
from graphml_cpu.simd import WIDTH

# Positions whose scores are held at a time.
BLOCK = 64
# Query heads and registers of values per tile: what 32 or 16 registers hold.
TILE_HEADS = 4 if target.current().registers == 32 else 2
_TILE_VECTORS = 4


def make_scores(d_k: int, dtype: str, ahead_bytes: int = 0) -> Any:
    """`scores(heads, count, q, cells, k, cell_bytes, out, pieces)`: 1 to 4 heads, positions.

    Meanwhile `ahead_bytes` at each of `pieces` are fetched into the second cache: addresses, as
    many as positions, up to a whole tile.
    """
    lanes = math.gcd(d_k, WIDTH)

    def for_heads(heads: int) -> Any:
        tile = make_score_tile(min(heads, TILE_HEADS), d_k, lanes, dtype, BLOCK * 4, ahead_bytes)

        @inline
        def rows(count: int, q: int, cells: int, k: int, cell_bytes: int, out: int, pieces: int) -> None:
            for i in range(0, count, TILE_CELLS):
                tile(q, cells + i * 8, k, cell_bytes, out + i * 4, pieces + i * 8)

        return rows

    heads_1, heads_2, heads_3, heads_4 = map(for_heads, (1, 2, 3, 4))

    @inline
    def scores(
        heads: int, count: int, q: int, cells: int, k: int, cell_bytes: int, out: int, pieces: int
    ) -> None:
        if heads == 1:
            heads_1(count, q, cells, k, cell_bytes, out, pieces)
        elif heads == 2:
            heads_2(count, q, cells, k, cell_bytes, out, pieces)
        elif heads == 3:
            heads_3(count, q, cells, k, cell_bytes, out, pieces)
        else:
            heads_4(count, q, cells, k, cell_bytes, out, pieces)

    return scores


def make_weigh(d_v: int, dtype: str, record_bytes: int, ahead_bytes: int = 0) -> Any:
    """`weigh(heads, weights, cells, count, v, cell_bytes, alpha, out, pieces)`

    It computes out * alpha + weights @ values. Meanwhile `ahead_bytes` at each of `pieces`, as many
    addresses, are fetched into the second cache. count: whole tiles, `weights` of 0 behind the last.
    """
    lanes = math.gcd(d_v, WIDTH)
    # Whole blocks, which narrow vectors cut into more pieces than a tile has otherwise.
    tile_vectors = max(_TILE_VECTORS, make_elements(dtype, lanes).vectors)
    whole, rest = divmod(d_v // lanes, tile_vectors)
    tile_bytes = row_bytes(dtype, tile_vectors * lanes) if whole else 0

    def tiles(vectors: int, fetched: int) -> list[Any]:
        return [
            make_weigh_tile(min(heads, TILE_HEADS), vectors, lanes, dtype, BLOCK * 4, record_bytes, fetched)
            for heads in (1, 2, 3, 4)
        ]

    def for_heads(first: Any, wide: Any, narrow: Any) -> Any:
        @inline
        def columns(
            weights: int, cells: int, count: int, v: int, cell_bytes: int, alpha: int, out: int,
            pieces: int,
        ) -> None:  # fmt: skip
            first(weights, cells, count, v, cell_bytes, alpha, out, pieces)
            for part in range(1, whole):
                to = out + part * tile_vectors * lanes * 4
                wide(weights, cells, count, v + part * tile_bytes, cell_bytes, alpha, to, 0)
            if rest > 0 and whole > 0:
                to = out + whole * tile_vectors * lanes * 4
                narrow(weights, cells, count, v + whole * tile_bytes, cell_bytes, alpha, to, 0)

        return columns

    firsts = tiles(tile_vectors if whole else rest, ahead_bytes)
    every = zip(firsts, tiles(tile_vectors, 0), tiles(max(rest, 1), 0), strict=True)
    heads_1, heads_2, heads_3, heads_4 = (for_heads(*of) for of in every)

    @inline
    def weigh(
        heads: int, weights: int, cells: int, count: int, v: int, cell_bytes: int, alpha: int, out: int,
        pieces: int,
    ) -> None:  # fmt: skip
        if heads == 1:
            heads_1(weights, cells, count, v, cell_bytes, alpha, out, pieces)
        elif heads == 2:
            heads_2(weights, cells, count, v, cell_bytes, alpha, out, pieces)
        elif heads == 3:
            heads_3(weights, cells, count, v, cell_bytes, alpha, out, pieces)
        else:
            heads_4(weights, cells, count, v, cell_bytes, alpha, out, pieces)

    return weigh
