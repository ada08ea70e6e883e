"""The layouts of converted activations, and the scratch memory of the products.

Knows sizes and offsets only, without LLVM: the lowering and the kernels both read them here.

A row of k values is cut into groups of 128 (the last one filled with zeros), and a group takes 256 bytes. As
`bf16` it is 128 bfloat16, rounded to nearest even. As `q8_1`, which meets block formats, it is four blocks of
32 values in int8. Every block has a scale of its own, max |x| / 127, and values q = round(x / scale):

    0    values 0 to 15 of blocks 0, 1, 2, 3 (int8)
    64   values 16 to 31 of blocks 0, 1, 2, 3 (int8)
    128  seeds: for each block four int32: a, b, a + b, -(a + b), where a is -128 * the sum of the block's q 0
         to 15 and b the same of q 16 to 31
    192  scale, four float32
    208  scale * sum of the block's q 0 to 15, four float32
    224  scale * sum of the block's q 16 to 31, four float32
    240  scale * sum of the block's q, four float32

The two halves of a block lie apart, so that a half of every block fills a register of 64 bytes: the low and
the high nibbles of GGUF's 4-bit blocks, and the planes of the K formats, give weights in just that order.
Sums are what a format's minima are multiplied with. Integer sums that start with a seed leave a constant
offset of the weights away, exactly: 128, or with the seed shifted right a smaller power of two. The four
seeds of a block add up to a + b, so they may also start the four lanes that a block has in a register. A
block with a NaN or an infinity gets q = 0 and NaN scales: its products are NaN.
"""

from __future__ import annotations

from graphml_cpu import target
from graphml_cpu.layouts import FEW_ROWS, panel_scratch_bytes
from graphml_cpu.product_costs import cheapest_rows

LAYOUTS = ("q8_1", "bf16")
"""What activations are converted to, names of dtypes."""
BF16_PAIRS = "bf16_pairs"
"""The kind of products of BF16 weights and activations; those of a format's name take other activations."""

FLOATS = ("f32", "f16", "bf16", BF16_PAIRS)
"""Kinds of products with weights that are no blocks of integers."""

BLOCK = 32
GROUP = 128
GROUP_BYTES = 256
HIGH_HALF = 64
SEEDS = 128
SCALE = 192
LOW_SUM = 208
HIGH_SUM = 224
SUM = 240

# Integer products unpack columns of weights into two panels of W rows: for few rows of activations so many
# that the panels stay in the first cache; for more as many as COLUMNS, so that activations are read in runs.
FEW_COLUMNS = 512
FEW_TOKENS = 32
COLUMNS = 4096
# Pairs of panels that meet a tile of tokens one after the other.
PAIRS = 2
# Rows of activations whose sums are kept meanwhile.
TOKENS = 512
# Bytes that one row of a unit of weights takes while a panel is made: at most two groups of values, scales
# and minima (`kernels.products.integer_panels`).
UNIT_ROW_BYTES = 2 * 192
# Sums of a product where its order is that of a few rows: a block of columns adds to the one of its place in
# its group. Columns are passed once for each, so fewer of them are taken at a time.
PLACES = 4
ORDERED_COLUMNS = 2048
# Vectors of a panel for each block of columns: values, scales and minima, at most.
_PANEL_VECTORS = 8 + 2 + 2
# Tokens of a register tile, at most.
TILE_TOKENS = 16
# Bytes of activations that stay in the second cache while rows of weights pass, where tokens are interleaved
# (`kernels.products.interleaved_tokens`); bytes of a token's group at most; and of what else they need: of
# each token for its sums and results, and for the rows of weights that are unpacked together.
INTERLEAVED_CACHE = 192 << 10
_INTERLEAVED_GROUP = 16 * (8 + 1 + 2 + 2)
_INTERLEAVED_SUMS = 64 * (16 + 4)
_INTERLEAVED_ROWS = 8 * UNIT_ROW_BYTES


def few_rows(kind: str, n: int) -> int:
    """Up to how many rows a product with n rows of weights of a kind is cheaper without panels.

    See `product_costs`; `graphml tune` measures it for a shape.
    """
    return cheapest_rows(kind, kind in FLOATS, n)


def packed_bytes(k: int) -> int:
    """Bytes of one packed row of k values."""
    return -(-k // GROUP) * GROUP_BYTES


def interleaved_scratch_bytes(k: int, rows: int) -> int:
    """Bytes of scratch memory of the integer products of up to `rows` interleaved rows."""
    return rows * (_INTERLEAVED_SUMS + -(-k // GROUP) * _INTERLEAVED_GROUP) + _INTERLEAVED_ROWS


def scratch_bytes(kind: str, k: int) -> int:
    """Bytes of scratch memory that each thread needs in `mul_mat-<kind>` (more than one row of x)."""
    vector_bytes = target.current().vector_bytes
    if kind in FLOATS:
        return panel_scratch_bytes(k)
    columns = min(-(-k // GROUP) * GROUP, COLUMNS)
    panels = PAIRS * 2 * columns // BLOCK * _PANEL_VECTORS * vector_bytes
    sums = PAIRS * 2 * PLACES * (TOKENS + TILE_TOKENS) * vector_bytes
    return max(panels + sums + vector_bytes // 4 * UNIT_ROW_BYTES, interleaved_scratch_bytes(k, FEW_ROWS))
