"""The int8 layout of activations that meet quantised weights, and the scratch memory of the products.

Knows sizes and offsets only, without numba: the lowering and the kernels both read them here.

A row of k values is cut into groups of 128 (the last one filled with zeros), a group into four blocks of 32.
Every block has a scale of its own, max |x| / 127, and values q = round(x / scale). A group is 192 bytes:

    0    values 0 to 15 of blocks 0, 1, 2, 3 (int8)
    64   values 16 to 31 of blocks 0, 1, 2, 3 (int8)
    128  scale, four float32
    144  scale * sum of the block's q, four float32        (what a format's minimum is multiplied with)
    160  -8 * sum of the block's q, four int32             (takes the 8 off an unsigned 4-bit weight)
    176  -128 * sum of the block's q, four int32           (takes the 128 off an unsigned 8-bit weight)

The two halves of a block lie apart as the low and high nibbles of GGUF's 4-bit blocks do, so that one to
four blocks fill a register in the order of the weights. A block with a NaN or an infinity gets q = 0 and NaN
scales: its products are NaN.
"""

from __future__ import annotations

from graphml_cpu import target

BLOCK = 32
GROUP = 128
GROUP_BYTES = 192
HIGH_HALF = 64
SCALE = 128
SCALED_SUM = 144
SEED_8 = 160
SEED_128 = 176


def packed_bytes(k: int) -> int:
    """Bytes of one packed row of k values."""
    return -(-k // GROUP) * GROUP_BYTES


def panel_block_bytes() -> int:
    """Bytes of one block column of an unpacked panel: 32 bytes, a scale and a minimum for each of W rows."""
    return 40 * target.current().f32_lanes


# Panels of W rows that are unpacked together, so that activations are read half as often.
PANELS = 2
# Columns of a panel of float weights: its 2 W rows of 1024 columns are 128 KiB, well inside the second cache.
FLOAT_COLUMNS = 1024
_TILE_TOKENS = 8


def scratch_bytes(kind: str, k: int) -> int:
    """Bytes of scratch memory that each thread needs in `mul_mat-<kind>` (many rows of activations)."""
    vector_bytes = target.current().vector_bytes
    if kind in ("f32", "f16", "bf16"):
        columns = min(-(-k // 256) * 256, FLOAT_COLUMNS)
        square = vector_bytes // 4 * vector_bytes
        return 2 * vector_bytes * columns + max(square, 2 * _TILE_TOKENS * vector_bytes)
    return PANELS * -(-k // BLOCK) * panel_block_bytes() + _TILE_TOKENS * vector_bytes
