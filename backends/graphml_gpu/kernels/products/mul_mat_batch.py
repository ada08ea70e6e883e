"""Products of two computed values for each token: y[b] = x[b] w[b]^T of every b, float32, a tile a workgroup.

Knows nothing of graphs.
"""

from __future__ import annotations

from graphml_gpu.kernels.grid import group_number
from graphml_gpu.language import (
    Read,
    Write,
    barrier,
    f32,
    kernel,
    local_id,
    select,
    shared_array,
    u32,
    unroll,
)

SIDE = 16
"""Rows and columns of a tile of results, and numbers of a row that are in shared memory at a time."""


@kernel
def mul_mat_batch(
    w: Read[f32], x: Read[f32], y: Write[f32], batches: u32, n: u32, m: u32, k: u32,
    *, GROUP: int = SIDE * SIDE,
) -> None:  # fmt: skip
    """w [batches, n, k], x [batches, m, k], y [batches, m, n]; an invocation a result of the tile.

    Groups: tiles of n, of m, batches. Past the edge of a matrix zeros are loaded, and nothing is stored.
    """
    stride = SIDE + 1  # rows of a tile begin in other banks of shared memory
    weights, rows = shared_array(f32, SIDE * (SIDE + 1)), shared_array(f32, SIDE * (SIDE + 1))
    wide, tall = (n + SIDE - 1) // SIDE, (m + SIDE - 1) // SIDE
    batch, tile = group_number() // (wide * tall), group_number() % (wide * tall)
    across, down = local_id(0) % SIDE, local_id(0) // SIDE
    column, row = tile % wide * SIDE, tile // wide * SIDE
    if batch < batches:
        total = f32(0.0)
        for first in range(0, k, SIDE):
            at = min(first + across, k - 1)
            inside = first + across < k
            weight = w[(batch * n + min(column + down, n - 1)) * k + at]
            number = x[(batch * m + min(row + down, m - 1)) * k + at]
            weights[down * stride + across] = select(inside, weight, 0.0)
            rows[down * stride + across] = select(inside, number, 0.0)
            barrier()
            for i in unroll(SIDE):
                total += weights[across * stride + i] * rows[down * stride + i]
            barrier()
        if column + across < n and row + down < m:
            y[(batch * m + row + down) * n + column + across] = total
