"""Rows of a table of any format as float32: embeddings, and whole weights that are wanted as numbers."""

from __future__ import annotations

from graphml_gpu.kernels.weight_rows import WeightRowFormat, place, row_bytes, unpacked
from graphml_gpu.language import Read, Write, f32, group_id, i32, kernel, local_id, num_groups, u32, unroll


@kernel
def get_rows(
    w: Read[u32],
    table: Read[u32],
    indices: Read[i32],
    out: Write[f32],
    n: u32,
    k: u32,
    count: u32,
    first: u32,
    total: u32,
    *,
    FORMAT: str,
    ALIGN: int,
    EVEN: bool = True,
    CHOSEN: bool = True,
    GROUP: int = 64,
) -> None:
    """out [count, k] = rows of a table at indices [count], in order if not CHOSEN. An invocation a unit.

    w [n, k] are those of the table's `total` rows from `first` on: what stands in others is left alone. An
    index that no row has is zeros.
    """
    units = (k + 15) // 16
    number = (group_id(0) + group_id(1) * num_groups(0)) * GROUP + local_id(0)
    if number < count * units:
        row, unit = number // units, number % units
        wanted = u32(indices[row]) if CHOSEN else row
        source = wanted - first
        if source < n:
            form = WeightRowFormat(FORMAT, ALIGN, EVEN)
            quads = unpacked(w, table, source * row_bytes(k, FORMAT), unit, k, form)
            for quad in unroll(4):
                at = place(unit, quad, FORMAT)
                for lane in unroll(4):
                    if EVEN or at + lane < k:
                        out[row * k + at + lane] = quads[quad][lane]
        if CHOSEN and first == 0 and wanted >= total:
            for i in unroll(16):
                if EVEN or unit * 16 + i < k:
                    out[row * k + unit * 16 + i] = 0.0
