"""Blocks of a sequence that are taken from another one, or moved within its own, copied on write.

A fork holds the full blocks of its sibling and gets a copy of the one that is filled partly. A prompt that
parts from an earlier one within a block gets a copy of the cells before that. A context shift
moves cells within blocks that the sequence alone holds; those that others hold too are left to them.

Knows sequences, blocks and cells; nothing of arrays or models.
"""

from __future__ import annotations

import numpy as np

from graphml.ir.cells import cells_of
from graphml.ir.op import Array
from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.plans.step_plan import Move


def fork(sequence: Sequence, sibling: Sequence, pool: BlockPool) -> tuple[Move, ...]:
    """Hold what a running sequence of the same request has computed of the prompt, all but the last id.

    sequence: holds what `adopt_prefix` found. Without a free block for the partly filled one, full ones.
    """
    size = pool.block_size
    count = min(sequence.request.n_prompt, sibling.n_computed, len(sequence.ids) - 1)
    if count <= sequence.n_computed:
        return ()
    whole = count // size
    shared = sibling.blocks[len(sequence.blocks) : whole]
    pool.share(shared)
    sequence.blocks += shared
    own = pool.allocate(1) if count % size else []
    if own is None:
        count = whole * size
    sequence.n_computed, sequence.copies = count, True
    if not own:
        return ()
    sequence.blocks += own
    sources = _cells(sibling.blocks, whole * size, count, size)
    return (Move(sources, _cells(sequence.blocks, whole * size, count, size)),)


def copy_begun(sequence: Sequence, most: int, pool: BlockPool) -> tuple[Move, ...]:
    """Hold a copy of the cells that some block has of its next ids, if a block is free.

    most: of its ids that it may find. sequence: holds what `adopt_prefix` found, and nothing more.
    """
    first = sequence.n_computed
    begun = pool.begun(sequence.ids_at(first, min(pool.block_size, most - first)), sequence.prefix)
    if begun is None:
        return ()
    pool.share([begun.block])  # so that the copy is not made in it
    own = pool.allocate(1)
    pool.release([begun.block])
    if own is None:
        return ()
    sequence.blocks += own
    sequence.n_computed, sequence.copies = first + begun.count, True
    cells = np.arange(begun.count, dtype=np.int32)
    return (Move(cells + begun.block * pool.block_size, cells + own[0] * pool.block_size),)


def shift(sequence: Sequence, keep: int, drop: int, pool: BlockPool) -> tuple[Move, ...] | None:
    """Forget `drop` ids from `keep` on, and move the later ones down.

    None, and no change, where there are too few free blocks. All ids but the last are computed, at least
    `keep + drop` of them.
    """
    size, old, n_computed = pool.block_size, sequence.blocks, sequence.n_computed
    end = n_computed - drop
    first, last = keep // size, -(-end // size)
    shared = [i for i in range(first, last) if pool.is_shared(old[i])]
    fresh = pool.allocate(len(shared))
    if fresh is None:
        return None
    blocks = old[:last]
    for i, block in zip(shared, fresh, strict=True):
        blocks[i] = block
    for i in range(first, last):
        pool.forget(blocks[i])
    moves = []
    if first in shared and keep % size:
        moves.append(Move(_cells(old, first * size, keep, size), _cells(blocks, first * size, keep, size)))
    moves.append(Move(_cells(old, keep + drop, n_computed, size), _cells(blocks, keep, end, size), -drop))
    pool.release([old[i] for i in shared] + old[last:])
    sequence.forget(keep, drop)
    sequence.blocks, sequence.n_computed, sequence.moved = blocks, end, True
    return tuple(moves)


def _cells(blocks: list[int], first: int, end: int, size: int) -> Array:
    """The cells of the positions from `first` on, before `end`."""
    return cells_of(np.array(blocks, np.int32), np.arange(first, end, dtype=np.int32), size)
