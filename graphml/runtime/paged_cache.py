"""The cache of a session or a batch: which cells hold which positions of which sequences.

How many tokens each sequence holds is all that changes, in one store: which blocks are free follows from it.
Knows numbers only; the arrays themselves are a device's `State`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from graphml.errors import ContextFullError, UsageError
from graphml.ir.cell_groups import CellGroup
from graphml.ir.op import Array
from graphml.runtime.kept_states import KeptStates
from graphml.runtime.window_ring import WindowRing

BLOCK_SIZE = 32  # cells
MAX_CELLS = 1 << 20  # of the longest context that programs are compiled for


def cells_of(blocks: Array, positions: Array, block_size: int) -> Array:
    """The cells of some positions, int32, of a sequence whose blocks these are."""
    size = np.int32(block_size)
    cells: Array = blocks[positions // size] * size + positions % size
    return cells


class PagedCache:
    """Blocks of `block_size` cells, given to sequences as they grow and taken back as they shrink.

    table: int32 [n_sequences, blocks per sequence], what the graph's `block_table` input wants; lengths: the
    tokens that each sequence holds. block_order: all blocks, the first free one is taken first. recurrent:
    besides cells a sequence has states that every token changes, which cannot be cut back; `states` tells
    what they have read. encoded: a sequence has a source text besides, and `source` its cells, as many as it
    has of its own. groups: layers that see a window or a chunk and keep no more than it and the longest step;
    all others keep all tokens. apart: steps of one sequence run by the program of a cache without others.
    """

    def __init__(
        self,
        n_ctx: int,
        block_size: int,
        n_sequences: int = 1,
        recurrent: bool = False,
        encoded: bool = False,
        groups: Iterable[CellGroup] = (),
        longest_step: int = 1,
        apart: bool = False,
    ) -> None:
        self.apart = apart
        self.states = KeptStates(n_sequences) if recurrent else None
        self._rings = {
            group: WindowRing(group, n_ctx, block_size, n_sequences, longest_step) for group in groups
        }
        self.source = PagedCache(n_ctx, block_size, n_sequences) if encoded else None
        per_sequence = -(-n_ctx // block_size)
        self.n_ctx = n_ctx
        self.block_size = block_size
        self.n_cells = per_sequence * block_size * n_sequences
        self.table: Array = np.zeros((n_sequences, per_sequence), np.int32)
        self.lengths = [0] * n_sequences
        self.block_order: Array = np.arange(per_sequence * n_sequences, dtype=np.int32)

    def append(self, sequence: int, count: int) -> tuple[Array, Array]:
        """Room for `count` more tokens: their positions and cells, int32 [count]."""
        start = self.lengths[sequence]
        end = start + count
        if end > self.n_ctx:
            raise ContextFullError(
                f"the context holds {self.n_ctx} tokens and has {start}; got {count} more (see n_ctx, rewind)"
            )
        first, last = self._n_blocks(start), self._n_blocks(end)
        if last > first:
            self.table[sequence, first:last] = self._free()[: last - first]
        for ring in self._rings.values():
            ring.append(sequence, start, end)
        positions = np.arange(start, end, dtype=np.int32)
        cells = cells_of(self.table[sequence], positions, self.block_size)
        self.lengths[sequence] = end  # the last step: until now nothing has changed
        return positions, cells

    def append_all(self, counts: Mapping[int, int]) -> dict[str, Array]:
        """Room for so many more tokens of each sequence: `positions`, `cells`, `sequences` of all of them."""
        rooms = [self.append(sequence, count) for sequence, count in counts.items()]
        return {
            "positions": np.concatenate([positions for positions, _ in rooms]),
            "cells": np.concatenate([cells for _, cells in rooms]),
            "sequences": np.repeat(np.array(list(counts), np.int32), list(counts.values())),
        }

    def rewind(self, sequence: int, length: int) -> None:
        """Forget the tokens from `length` on; a `UsageError` where there are not so many.

        A recurrent sequence then holds only those of which it has a copy of its states, unless it keeps them
        all: the others before `length` have to be evaluated again. Without one it holds none, since a
        recurrent state begins anew at position 0. So does one whose windows were written over; as many tokens
        as the longest step has can always be forgotten.
        """
        if not 0 <= length <= self.lengths[sequence]:
            raise UsageError(f"rewind: wanted 0 to {self.lengths[sequence]} tokens to keep; got {length}")
        if self.states is not None and length < self.lengths[sequence]:
            length = self.states.reach(sequence, length)
        if not all(ring.holds(sequence, length) for ring in self._rings.values()):
            length = 0
            if self.states is not None:
                self.states.reach(sequence, 0)  # copies of tokens that may become others
        self.lengths[sequence] = length

    def holds_all(self, sequence: int) -> bool:
        """Whether no window of a sequence has been written over: each holds all tokens."""
        return all(ring.holds_all(sequence) for ring in self._rings.values())

    def seen_cells(self, sequence: int, group: CellGroup) -> Array:
        """The cells of the blocks that the next token of a sequence sees in a group of layers, in order."""
        length = self.lengths[sequence]
        first = group.first_seen(length) // self.block_size * self.block_size
        positions = np.arange(first, length, dtype=np.int32)
        return cells_of(self.of_group(group).table[sequence], positions, self.block_size)

    def forget_windows(self, sequence: int) -> None:
        """Of windows a sequence has `seen_cells` alone: it cannot be cut back to where it saw more."""
        for ring in self._rings.values():
            ring.forget(sequence, self.lengths[sequence])

    def of_group(self, group: CellGroup) -> WindowRing | PagedCache:
        """Where a group of layers keeps keys and values: a ring of its own, else with those that see all."""
        return self._rings.get(group, self)

    def n_program(self, n_sequences: int) -> int:
        """For how many sequences the program is that computes a step of so many of them."""
        return 1 if self.apart and n_sequences == 1 else len(self.lengths)

    def sizes(self, groups: Iterable[CellGroup], n_sequences: int | None = None) -> dict[str, int]:
        """The dimensions of a graph's states: sequences, and cells of each of its groups.

        n_sequences: of a program, where it is not for all.
        """
        of_groups = {group.symbol: self.of_group(group).n_cells for group in groups}
        return {"S": n_sequences or len(self.lengths), "C": self.n_cells, **of_groups}

    def _n_blocks(self, length: int) -> int:
        """Blocks that so many tokens take."""
        return -(-length // self.block_size)

    def _free(self) -> Array:
        """The blocks that no sequence holds, in the order in which they are taken."""
        taken = np.zeros(len(self.block_order), bool)
        for row, length in zip(self.table, self.lengths, strict=True):
            taken[row[: self._n_blocks(length)]] = True
        return self.block_order[~taken[self.block_order]]
