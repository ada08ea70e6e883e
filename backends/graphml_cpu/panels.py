"""Sizes of the float32 panels that weights of any format are decoded to.

Knows sizes only, without numba: the lowering and the kernels both read them here.

A panel holds `panel_rows()` weight rows and at most CHUNK columns, transposed: for each column the values of
all its rows side by side, so that they fill vectors. Behind it lies one decoded row.
"""

from __future__ import annotations

from graphml_cpu import target

# Columns of a panel: a multiple of every format's block. 32 rows of 1024 columns are 128 KiB, well inside L2.
CHUNK = 1024


def panel_rows() -> int:
    """Weight rows of a panel: two vectors."""
    return 2 * target.current().f32_lanes


def panel_scratch_bytes(k: int) -> int:
    """Bytes of scratch memory that each thread needs for weights of k columns."""
    columns = min(-(-k // 256) * 256, CHUNK)
    whole_row = -(-k // 256) * 256
    return 4 * (panel_rows() * columns + whole_row) + 64
