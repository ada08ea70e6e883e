"""Which tokens of a step share the beginning of what they see, by their sequences' rows of the block table.

Tokens that stand alone are compared in turn with the first of each group so far, and join where the shared
beginning is not much shorter than the group's. Knows positions and block tables; nothing of queries, keys or
softmax.

A note of one token, int32 [2]: how many positions from the first on are computed with its group (0: none,
else a multiple of 64 and at least one of its chunks), and into how many segments they are cut.
"""

from __future__ import annotations

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.attention.paging import chunk_size, is_alone, log2_of, takes, visible
from graphml_cpu.layouts import (
    GROUP_BYTES,
    MAX_CHUNKS,
    PREFILL_BLOCK,
    SHARED_NOTE_BYTES,
    SHARING_ROWS,
)
from graphml_cpu.simd import load_i32, store_i32

_SEGMENT = 256
"""Positions of a segment, at least: what loading a tile's queries and writing its results is spread over."""

# A token's entry in the list, int32: its row of the step, the entry of its group's first token, its first
# block of the cache; of a group's first token the positions that all share, how many tokens there are, and
# the largest chunk of one of them.
_ROW, _LEADER, _BLOCK, _EXTENT, _COUNT, _CHUNK = range(0, 24, 4)


@inline
def entry_row(groups: int, entry: int) -> int:
    """The row of the step that a token is."""
    return load_i32(groups + entry * GROUP_BYTES + _ROW)


@inline
def entry_leader(groups: int, entry: int) -> int:
    """The entry of the first token of its group."""
    return load_i32(groups + entry * GROUP_BYTES + _LEADER)


@inline
def group_rows(groups: int, leader: int) -> int:
    """The number of tokens of a group, 0 for an entry that leads none worth it."""
    count = load_i32(groups + leader * GROUP_BYTES + _COUNT)
    return count if count >= SHARING_ROWS else 0


@inline
def group_extent(groups: int, leader: int) -> int:
    """The positions that the tokens of a group share."""
    return load_i32(groups + leader * GROUP_BYTES + _EXTENT)


@inline
def group_segments(groups: int, leader: int) -> int:
    """Into how many segments they are cut: no more than chunks that each of the tokens has there."""
    extent, chunk = group_extent(groups, leader), load_i32(groups + leader * GROUP_BYTES + _CHUNK)
    return max(min(extent // _SEGMENT, extent // chunk), 1)


@inline
def _shared_positions(a: int, b: int, most: int, shift: int) -> int:
    """How many of the first `most` positions are in the same cells by two rows of the block table.

    A multiple of 64, of whole blocks of the cache.
    """
    block, blocks = 0, most >> shift
    while block < blocks and load_i32(a + block * 4) == load_i32(b + block * 4):
        block += 1
    return (block << shift) // PREFILL_BLOCK * PREFILL_BLOCK


@inline
def _joins(groups: int, leader: int, own: int, end: int, chunk: int, block_table: int, shift: int) -> bool:
    """Let a token into a group if what it shares is enough; own, block_table: rows of the block table."""
    at = groups + leader * GROUP_BYTES
    extent, count = load_i32(at + _EXTENT), load_i32(at + _COUNT)
    chunk = max(chunk, load_i32(at + _CHUNK))
    if min(extent, end) < chunk:
        return False
    shared = _shared_positions(own, block_table, min(extent, end), shift)
    if shared < chunk or (count > 1 and 2 * shared < extent):
        return False
    store_i32(at + _EXTENT, shared)
    store_i32(at + _COUNT, count + 1)
    store_i32(at + _CHUNK, chunk)
    return True


@inline
def find_groups(
    groups: int, positions: int, sequences: int, lengths: int, block_table: int, table_stride: int,
    block_size: int, window: int, causal: int, alone: int, n_sequences: int, room: int, rows: int,
) -> int:  # fmt: skip
    """List the tokens that decoding computes with their groups; returns how many they are."""
    shift, taken = log2_of(block_size), 0
    for row in range(rows):
        if takes(row, taken, alone, rows, sequences):
            first, end = visible(row, positions, sequences, lengths, window, causal, n_sequences, room)
            at = groups + taken * GROUP_BYTES
            own = block_table + load_i32(sequences + row * 4) * table_stride * 4
            chunk, leader = chunk_size(end - first, MAX_CHUNKS), 0
            # Tokens of one sequence, as of drafts, have the bits of decoding one by one.
            joins, block = first == 0 and is_alone(row, rows, sequences), -1
            if end > 0:
                block = load_i32(own)
            while leader < taken:
                if joins and load_i32(groups + leader * GROUP_BYTES + _BLOCK) == block:
                    theirs = load_i32(sequences + entry_row(groups, leader) * 4)
                    table = block_table + theirs * table_stride * 4
                    if _joins(groups, leader, own, end, chunk, table, shift):
                        break
                leader += 1
            store_i32(at + _ROW, row)
            store_i32(at + _LEADER, leader)
            store_i32(at + _BLOCK, block)
            # A token that does not join leads a group of its own, which has no positions to share.
            store_i32(at + _EXTENT, end if leader == taken and joins else 0)
            store_i32(at + _COUNT, 1 if leader == taken else 0)
            store_i32(at + _CHUNK, chunk)
            taken += 1
    return taken


@inline
def write_notes(groups: int, taken: int, notes: int) -> None:
    """The notes of the tokens of the list."""
    for entry in range(taken):
        leader = entry_leader(groups, entry)
        shares = group_rows(groups, leader) > 0
        store_i32(notes + entry * SHARED_NOTE_BYTES, group_extent(groups, leader) if shares else 0)
        store_i32(notes + entry * SHARED_NOTE_BYTES + 4, group_segments(groups, leader) if shares else 0)


@inline
def noted(partial: int, notes_bytes: int, entry: int) -> tuple[int, int]:
    """A token's shared positions and their segments, by the notes before the records, if there are any."""
    if notes_bytes == 0:
        return 0, 0
    at = partial + entry * SHARED_NOTE_BYTES
    return load_i32(at), load_i32(at + 4)
