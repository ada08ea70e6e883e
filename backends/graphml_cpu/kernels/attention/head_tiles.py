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
from graphml_cpu.kernels.attention.tiles import SCORE_ROWS, make_score_tile, make_weigh_tile
from graphml_cpu.simd import WIDTH

# Positions whose scores are held at a time.
BLOCK = 64
# Query heads and registers of values per tile: what 32 or 16 registers hold.
TILE_HEADS = 4 if target.current().registers == 32 else 2
_TILE_VECTORS = 4


def make_scores(d_k: int, dtype: str) -> Any:
    """`scores(heads, count, q, cells, k, cell_bytes, out)`: 1 to 4 heads times `count` positions."""
    lanes = math.gcd(d_k, WIDTH)
    tile_1, tile_2, tile_3, tile_4 = (
        make_score_tile(min(heads, TILE_HEADS), d_k, lanes, dtype, BLOCK * 4) for heads in (1, 2, 3, 4)
    )

    @inline
    def scores(heads: int, count: int, q: int, cells: int, k: int, cell_bytes: int, out: int) -> None:
        if heads == 1:
            for i in range(0, count, SCORE_ROWS):
                tile_1(q, cells + i * 8, k, cell_bytes, out + i * 4)
        elif heads == 2:
            for i in range(0, count, SCORE_ROWS):
                tile_2(q, cells + i * 8, k, cell_bytes, out + i * 4)
        elif heads == 3:
            for i in range(0, count, SCORE_ROWS):
                tile_3(q, cells + i * 8, k, cell_bytes, out + i * 4)
        else:
            for i in range(0, count, SCORE_ROWS):
                tile_4(q, cells + i * 8, k, cell_bytes, out + i * 4)

    return scores


def make_weigh(d_v: int, dtype: str, record_bytes: int) -> Any:
    """`weigh(heads, weights, cells, count, v, cell_bytes, alpha, out)`: out * alpha + weights @ values."""
    lanes = math.gcd(d_v, WIDTH)
    # Whole blocks, which narrow vectors cut into more pieces than a tile has otherwise.
    tile_vectors = max(_TILE_VECTORS, make_elements(dtype, lanes).vectors)
    whole, rest = divmod(d_v // lanes, tile_vectors)
    tile_bytes = row_bytes(dtype, tile_vectors * lanes) if whole else 0

    def tiles(vectors: int) -> list[Any]:
        return [
            make_weigh_tile(min(heads, TILE_HEADS), vectors, lanes, dtype, BLOCK * 4, record_bytes)
            for heads in (1, 2, 3, 4)
        ]

    def for_heads(wide: Any, narrow: Any) -> Any:
        @inline
        def columns(
            weights: int, cells: int, count: int, v: int, cell_bytes: int, alpha: int, out: int
        ) -> None:
            for part in range(whole):
                to = out + part * tile_vectors * lanes * 4
                wide(weights, cells, count, v + part * tile_bytes, cell_bytes, alpha, to)
            if rest > 0:
                to = out + whole * tile_vectors * lanes * 4
                narrow(weights, cells, count, v + whole * tile_bytes, cell_bytes, alpha, to)

        return columns

    pairs = zip(tiles(tile_vectors), tiles(max(rest, 1)), strict=True)
    heads_1, heads_2, heads_3, heads_4 = (for_heads(wide, narrow) for wide, narrow in pairs)

    @inline
    def weigh(
        heads: int, weights: int, cells: int, count: int, v: int, cell_bytes: int, alpha: int, out: int
    ) -> None:
        if heads == 1:
            heads_1(weights, cells, count, v, cell_bytes, alpha, out)
        elif heads == 2:
            heads_2(weights, cells, count, v, cell_bytes, alpha, out)
        elif heads == 3:
            heads_3(weights, cells, count, v, cell_bytes, alpha, out)
        else:
            heads_4(weights, cells, count, v, cell_bytes, alpha, out)

    return weigh
