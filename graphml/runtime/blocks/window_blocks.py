"""The blocks of an engine's sliding-window layers: each belongs to a block that holds the same tokens.

A sequence holds those of what its next token sees; the others are free. A free one keeps its content, for the
block in the pool that it belongs to, until it is taken again, least recently used first. So a prefix is found
where the pool has all of its blocks and each group those of its last window. After vLLM's hybrid KV cache
manager.

A block in the pool identifies its tokens: a sequence that shares it shares the window's block, too. Knows
numbers; nothing of arrays, ids or hashes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from graphml.ir.cell_groups import CellGroup
from graphml.ir.op import Array

NONE = -1


@dataclass(frozen=True)
class WindowRoom:
    """Room for the windows of `n_sequences` sequences of `n_ctx` tokens.

    longest_step: tokens of a step, of all sequences together.
    """

    group: CellGroup
    n_sequences: int
    n_ctx: int
    longest_step: int
    block_size: int

    @property
    def n_blocks(self) -> int:
        """For each sequence what it holds between steps and one block more; and the tokens of a step."""
        of_a_sequence = -(-self.group.reach // self.block_size) + 2
        of_a_step = -(-min(self.longest_step, self.n_sequences * self.n_ctx) // self.block_size)
        return self.n_sequences * min(of_a_sequence, -(-self.n_ctx // self.block_size)) + of_a_step


class WindowBlocks:
    """The blocks of some room, for a pool of `n_pool_blocks` blocks of the same size.

    of: int32 [n_pool_blocks], the window's block that belongs to a block of the pool, or `NONE`.
    """

    def __init__(self, room: WindowRoom, n_pool_blocks: int) -> None:
        self.group, self.n_sequences, self._size = room.group, room.n_sequences, room.block_size
        self.n_blocks = n_blocks = room.n_blocks
        self.of: Array = np.full(n_pool_blocks, NONE, np.int32)
        self._owner = [NONE] * n_blocks  # the block of the pool that it belongs to
        self._holders = [0] * n_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(n_blocks))  # taken first is first

    @property
    def n_free(self) -> int:
        """Blocks that nobody holds; those with content count."""
        return len(self._free)

    def first_block(self, n_tokens: int) -> int:
        """The first block of a sequence of so many tokens that its next one sees."""
        return self.group.first_seen(n_tokens) // self._size

    def is_found(self, blocks: Sequence[int]) -> bool:
        """Whether a sequence that begins with these blocks of the pool can go on behind them."""
        first = self.first_block(len(blocks) * self._size)
        return all(self.of[block] != NONE for block in blocks[first:])

    def hold(self, blocks: Sequence[int]) -> None:
        """A sequence begins behind these blocks of the pool, which are found."""
        for block in blocks[self.first_block(len(blocks) * self._size) :]:
            own = int(self.of[block])
            self._holders[own] += 1
            self._free.pop(own, None)

    def take(self, blocks: Iterable[int]) -> list[tuple[int, int]]:
        """A sequence has new blocks in the pool: each gets one here. Of those, which belonged to others."""
        lost = []
        for block in blocks:
            own, _ = self._free.popitem(last=False)
            if self._owner[own] != NONE:
                lost.append((own, self._owner[own]))
                self.of[self._owner[own]] = NONE
            self._owner[own], self._holders[own] = block, 1
            self.of[block] = own
        return lost

    def advance(self, blocks: Sequence[int], before: int, after: int) -> None:
        """A sequence had `before` tokens and has `after`: what is behind its window is free."""
        self.let_go(blocks[self.first_block(before) : self.first_block(after)])

    def release(self, blocks: Sequence[int], n_tokens: int) -> None:
        """A sequence of so many tokens ends; its last block is taken first."""
        self.let_go(blocks[self.first_block(n_tokens) :][::-1])

    def forget(self, block: int) -> None:
        """What a block of the pool holds is gone."""
        own = int(self.of[block])
        if own != NONE:
            self.of[block] = self._owner[own] = NONE
            self._free.move_to_end(own, last=False)

    def let_go(self, blocks: Iterable[int]) -> None:
        """A sequence holds those of some blocks of the pool no more; the last is taken last."""
        for block in blocks:
            own = int(self.of[block])
            self._holders[own] -= 1
            if not self._holders[own]:
                self._free[own] = None
