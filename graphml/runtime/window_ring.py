"""The cells of sliding-window layers: each sequence has a ring of a few blocks.

A step writes its keys before it reads, so the blocks hold the window of a step's first token and the step
itself. Knows numbers only.
"""

from __future__ import annotations

import numpy as np

from graphml.ir.cell_groups import CellGroup
from graphml.ir.op import Array


class WindowRing:
    """Blocks of `block_size` cells for the tokens of `n_sequences`, at most `n_ctx` of each.

    longest_step: most tokens of one step. table: int32 [n_sequences, blocks of n_ctx tokens], what the
    graph's `block_table` of the group wants: `n_blocks` blocks of each sequence again and again. n_cells: of
    all sequences.
    """

    def __init__(
        self, group: CellGroup, n_ctx: int, block_size: int, n_sequences: int, longest_step: int
    ) -> None:
        self.group, self.block_size = group, block_size
        self._written = [0] * n_sequences  # the end of what was written since the sequence was empty
        of_all = -(-n_ctx // block_size)
        self.n_blocks = min(of_all, -(-(group.reach + longest_step) // block_size) + 1)
        self.n_cells = self.n_blocks * block_size * n_sequences
        first = np.arange(n_sequences, dtype=np.int32)[:, None] * np.int32(self.n_blocks)
        self.table: Array = first + np.arange(of_all, dtype=np.int32) % np.int32(self.n_blocks)

    def append(self, sequence: int, start: int, end: int) -> None:
        """Tokens `start` to `end` - 1 are about to be written."""
        self._written[sequence] = end if not start else max(self._written[sequence], end)

    def forget(self, sequence: int, length: int) -> None:
        """What is before the blocks that the token at position `length` sees is not there."""
        first = self.group.first_seen(length) // self.block_size
        self._written[sequence] = (first + self.n_blocks) * self.block_size

    def holds_all(self, sequence: int) -> bool:
        """Whether nothing was written over."""
        return self._written[sequence] <= self.n_blocks * self.block_size

    def holds(self, sequence: int, length: int) -> bool:
        """Whether what the token at position `length` sees of those before it was not written over."""
        first = self.group.first_seen(length)
        last_block = (self._written[sequence] - 1) // self.block_size
        return first >= length or first // self.block_size > last_block - self.n_blocks
