"""The blocks of sliding-window layers of pinned sequences: each sequence has a ring of a few.

A step writes its keys before it reads, so the blocks hold the window of a step's first token and the step
itself. Knows numbers only.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from graphml.ir.cell_groups import CellGroup
from graphml.ir.cells import BLOCK_SIZE
from graphml.ir.op import Array


class WindowRing:
    """The blocks of a group of layers for `n_sequences` sequences of at most `n_ctx` tokens.

    longest_step: most tokens of one step. of: int32 [blocks of all sequences], the ring's block that belongs
    to each of them, as `WindowBlocks.of`: those of one sequence have `n_each` in turn.
    """

    def __init__(self, group: CellGroup, n_ctx: int, n_sequences: int, longest_step: int) -> None:
        self.group = group
        of_all = -(-n_ctx // BLOCK_SIZE)
        self.n_each = min(of_all, -(-(group.reach + longest_step) // BLOCK_SIZE) + 1)
        self.n_blocks = self.n_each * n_sequences
        sequence, number = np.divmod(np.arange(of_all * n_sequences, dtype=np.int32), np.int32(of_all))
        self.of: Array = sequence * np.int32(self.n_each) + number % np.int32(self.n_each)

    def holds_all(self, end: int) -> bool:
        """Whether nothing was written over, where tokens were written up to `end`."""
        return end <= self.n_each * BLOCK_SIZE

    def holds(self, end: int, length: int) -> bool:
        """Whether what the token at position `length` sees of those before it was not written over."""
        first = self.group.first_seen(length)
        last_block = (end - 1) // BLOCK_SIZE
        return first >= length or first // BLOCK_SIZE > last_block - self.n_each

    def end_without_past(self, length: int) -> int:
        """As far as tokens seem to be written where only those are there that the one at `length` sees."""
        return (self.group.first_seen(length) // BLOCK_SIZE + self.n_each) * BLOCK_SIZE


def pinned_sizes(
    groups: Iterable[CellGroup], n_ctx: int, longest_step: int, n_sequences: int = 1
) -> dict[str, int]:
    """The dimensions of the states of pinned sequences: how many there are, and cells of each group."""
    sizes = {"S": n_sequences, "C": -(-n_ctx // BLOCK_SIZE) * BLOCK_SIZE * n_sequences}
    for group in groups:
        sizes[group.symbol] = WindowRing(group, n_ctx, n_sequences, longest_step).n_blocks * BLOCK_SIZE
    return sizes
