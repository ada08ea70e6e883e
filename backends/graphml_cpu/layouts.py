"""Sizes of the memory layouts that only this backend's kernels know, for those who plan without LLVM."""

from __future__ import annotations

from typing import NamedTuple

MAX_CHUNKS = 16
"""Most chunks that one token's positions are cut into by decoding attention."""


LARGEST_HEAD = 1024
"""Elements of the largest head that is quantised after it was rotated, in memory on the stack."""

PANEL_ROWS = 32
"""Weight rows that threads share out products through decoders by: whole panels at every level."""
PANEL_ELEMENTS = 2048
"""Elements of them that are decoded before they are multiplied: 256 KB at most, in the second cache."""
CHUNK_ELEMENTS = 256
"""Elements of one row that are decoded at a time: whole blocks of every format."""
TOKEN_BLOCK = 512
"""Token rows that meet a panel then."""
RECORD_BYTES = 24
"""What is noted about each of these rows: the addresses of the row, of its outputs, of its residuals."""
PANEL_SUMS_BYTES = 2048
"""Sums of one register tile of at most 16 tokens, at the widest vectors."""
ENCODER_FREE = 2048
"""Bytes of scratch that an encoder of a weight format may use for each block that it works on."""


def attention_record_bytes(d_v: int) -> int:
    """`partial` of one token and head: float32 maxima [16], sums [16], values [16, d_v]."""
    return MAX_CHUNKS * (2 + d_v) * 4


def attention_partial_bytes(rows: int, n_head: int, d_v: int) -> int:
    """Attention's `partial` for that many tokens."""
    return rows * n_head * attention_record_bytes(d_v)


SHARED_NOTE_BYTES = 8
"""What is noted of a token before these records: its shared positions, their segments; int32."""
GROUP_BYTES = 24
"""A token's entry in the list of groups, int32 [6]; see `graphml_cpu.kernels.attention.shared_rows`."""
SHARING_ROWS = 4
"""Tokens that a group needs: for three of three query heads a tile takes longer than decoding each."""


def shared_notes_bytes(rows: int) -> int:
    """Notes for that many tokens, whole lines of the cache."""
    return -(-rows * SHARED_NOTE_BYTES // 64) * 64


def panel_scratch_bytes(k: int) -> int:
    """Scratch of one thread of products through decoders, for rows of k elements; a multiple of 4 bytes."""
    decoded = max(-(-min(k, PANEL_ELEMENTS) // 16) * 16 * PANEL_ROWS, k)
    return 64 + TOKEN_BLOCK * RECORD_BYTES + PANEL_SUMS_BYTES + (16 * CHUNK_ELEMENTS + decoded) * 4


def expert_scratch_bytes(k: int, n_experts: int, pairs: int) -> int:
    """Scratch of one thread of `mul_mat_id`: the above, and the (token, slot) pairs sorted by expert."""
    return panel_scratch_bytes(k) + (n_experts + 1 + pairs) * 4


PAIR_BYTES = 16
"""What products of packed rows note about each (token, slot) pair: its row's address, its results' offset."""


def record_bytes(n_experts: int, pairs: int) -> int:
    """Scratch for the list of the pairs by expert, and for where each expert's end."""
    return pairs * PAIR_BYTES + (n_experts + 1) * 4


GLU_COLUMNS = 256
"""Columns of a gate whose two products one thread makes before it joins them, for a few rows."""
GLU_PANEL_COLUMNS = 32
"""The same for many rows: as many as are unpacked together, at the widest vectors."""
FEW_ROWS = 64
"""Most rows of activations for which weights are not unpacked to panels; `packed.few_rows` says how many.

Scratch memory is planned for it."""
PASSED_ROWS = 64
"""Weight rows that many rows of activations pass, a few at a time, where no panel is unpacked."""


def glu_scratch_bytes(rows: int) -> int:
    """Scratch of one thread of `mul_mat_glu` for its two products."""
    return 2 * 4 * max(FEW_ROWS * GLU_COLUMNS, rows * GLU_PANEL_COLUMNS if rows > FEW_ROWS else 0)


def low_rank_list_bytes(adapters: int, rows: int) -> int:
    """The lists of the rows of each adapter, which each thread of `low_rank` makes."""
    return 4 * adapters * (rows + 1)


def low_rank_scratch_bytes(rank: int, adapters: int, rows: int) -> int:
    """Scratch of one thread of `low_rank_up`, at the widest vectors: a transposed panel, the lists of rows.

    rank: the largest of the adapters.
    """
    return 64 * (16 + -(-rank // 16) * 16) + low_rank_list_bytes(adapters, rows)


PREFILL_BLOCK = 64
"""Positions that `attention_prefill` works on at a time."""
PREFILL_VECTORS = 3
"""Vectors of queries in a tile, a query in each lane."""
PREFILL_TILES = 4
"""Tiles of consecutive tokens at most that read keys and values, once converted, one after the other."""
PREFILL_LANE_ARRAYS = 8
"""Numbers that it keeps for each query of a tile, besides the query and its values."""
_PREFILL_LANES = PREFILL_VECTORS * 16
_PREFILL_ROWS = 8


def prefill_values(d_v: int) -> int:
    """`attention_prefill`'s rows of values: d_v rounded up to whole register tiles."""
    return -(-d_v // _PREFILL_ROWS) * _PREFILL_ROWS


def prefill_tile_bytes(d_k: int, d_v: int) -> int:
    """Scratch of one tile of `attention_prefill`, at the widest vectors."""
    return 4 * _PREFILL_LANES * (PREFILL_LANE_ARRAYS + d_k + PREFILL_BLOCK + prefill_values(d_v))


def prefill_scratch_bytes(d_k: int, d_v: int, tiles: int = PREFILL_TILES) -> int:
    """Scratch of one thread of `attention_prefill`: the tiles, then keys and values of a block."""
    return tiles * prefill_tile_bytes(d_k, d_v) + 4 * PREFILL_BLOCK * (d_k + prefill_values(d_v))


SHARED_TILE_BYTES = _PREFILL_LANES * 4
"""The tokens of a tile of `attention_shared`, int32 each."""


def shared_scratch_bytes(d_k: int, d_v: int, rows: int) -> int:
    """Scratch of one thread of `attention_shared` for so many tokens."""
    return prefill_scratch_bytes(d_k, d_v, 1) + SHARED_TILE_BYTES + rows * GROUP_BYTES


LONG_ROW = 16384
"""Rows of this many elements and more (a vocabulary) are reduced by all threads together."""
ROW_CHUNK = 4096
"""Elements of such a row that one thread reduces at a time: a third of the first cache."""
ROW_BLOCK = 256
"""Elements of such a row whose largest is noted before the k largest of all are sought."""
SORT_BITS = 11
SORT_PASSES = 3
"""Bits of a key that one pass of a row's radix sort looks at, and passes: 33 bits for the 32 of a key."""
SORT_COUNTS_BYTES = SORT_PASSES * (1 << SORT_BITS) * 8
"""The counters of that sort, int64."""


def row_chunks(n: int) -> int:
    """How many chunks of ROW_CHUNK a row of n elements has."""
    return -(-n // ROW_CHUNK)


def row_blocks(n: int) -> int:
    """How many blocks of ROW_BLOCK a row of n elements has."""
    return -(-n // ROW_BLOCK)


def encoder_lanes(width: int) -> int:
    """Blocks that an encoder works on at once, for registers of `width` float32.

    Two registers, so that sums wait for each other less; and tiles of 16 are transposed.
    """
    return max(16, 2 * width)


class EncoderScratch(NamedTuple):
    """Where in a thread's scratch memory an encoder has what; `free`: whatever else its format wants."""

    values: int
    weights: int
    encoded: int
    free: int
    n_bytes: int


def encoder_scratch(elements: int, size: int, lanes: int) -> EncoderScratch:
    """For blocks of so many elements and bytes; first of all come tables of a block's addresses.

    Behind an encoded block is room for two bytes that are not part of it.
    """
    values = lanes * 28
    weights = values + elements * lanes * 4
    encoded = weights + elements * lanes * 4
    free = -(-(encoded + (size + 2) * lanes) // 64) * 64
    return EncoderScratch(values, weights, encoded, free, free + ENCODER_FREE * lanes)
