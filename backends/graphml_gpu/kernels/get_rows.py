"""Rows of a table of any format as float32: embeddings, and whole weights that are wanted as numbers."""

from __future__ import annotations

from graphml_gpu.kernels.rows import place, row_bytes, unpacked
from graphml_gpu.language import (
    Read,
    Write,
    clamp,
    f32,
    group_id,
    i32,
    kernel,
    local_id,
    num_groups,
    u32,
    unroll,
)


@kernel
def get_rows(
    w: Read[u32],
    table: Read[u32],
    indices: Read[i32],
    out: Write[f32],
    n: u32,
    k: u32,
    count: u32,
    *,
    FORMAT: str,
    ALIGN: int,
    EVEN: bool = True,
    CHOSEN: bool = True,
    GROUP: int = 64,
) -> None:
    """out [count, k] = w [n, k] at indices [count], or in order where not CHOSEN. An invocation a unit."""
    units = (k + 15) // 16
    number = (group_id(0) + group_id(1) * num_groups(0)) * GROUP + local_id(0)
    if number < count * units:
        row, unit = number // units, number % units
        source = u32(clamp(indices[row], 0, i32(n) - 1)) if CHOSEN else row
        quads = unpacked(w, table, source * row_bytes(k, FORMAT), unit, k, FORMAT, ALIGN, EVEN)
        for quad in unroll(4):
            at = place(unit, quad, FORMAT)
            values = quads[quad]
            for lane, value in unroll(((0, values.x), (1, values.y), (2, values.z), (3, values.w))):
                if EVEN or at + lane < k:
                    out[row * k + at + lane] = value
