"""The cache of a session or a batch: which cells hold which positions of which sequences.

Knows numbers only; the arrays themselves are a device's `State`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from graphml.errors import ContextFullError, UsageError
from graphml.ir.op import Array


class PagedCache:
    """Blocks of `block_size` cells, given to sequences as they grow and taken back as they shrink.

    table: int32 [n_sequences, blocks per sequence], what the graph's `block_table` input wants; lengths: the
    tokens that each sequence holds. recurrent: besides cells a sequence has a state that every token changes,
    which cannot be cut back. encoded: a sequence has a source text besides, and `source` its cells, as many
    as it has of its own.
    """

    def __init__(
        self,
        n_ctx: int,
        block_size: int,
        n_sequences: int = 1,
        recurrent: bool = False,
        encoded: bool = False,
    ) -> None:
        self.recurrent = recurrent
        self.source = PagedCache(n_ctx, block_size, n_sequences) if encoded else None
        per_sequence = -(-n_ctx // block_size)
        self.n_ctx = n_ctx
        self.block_size = block_size
        self.n_cells = per_sequence * block_size * n_sequences
        self.table: Array = np.zeros((n_sequences, per_sequence), np.int32)
        self.lengths = [0] * n_sequences
        self._held: list[list[int]] = [[] for _ in range(n_sequences)]
        self._free = list(range(per_sequence * n_sequences - 1, -1, -1))

    def append(self, sequence: int, count: int) -> tuple[Array, Array]:
        """Room for `count` more tokens: their positions and cells, int32 [count]."""
        start = self.lengths[sequence]
        end = start + count
        if end > self.n_ctx:
            raise ContextFullError(
                f"the context holds {self.n_ctx} tokens and has {start}; got {count} more (see n_ctx, rewind)"
            )
        held = self._held[sequence]
        while len(held) * self.block_size < end:
            block = self._free.pop()
            self.table[sequence, len(held)] = block
            held.append(block)
        positions = np.arange(start, end, dtype=np.int32)
        self.lengths[sequence] = end
        blocks = self.table[sequence, positions // self.block_size]
        return positions, blocks * np.int32(self.block_size) + positions % np.int32(self.block_size)

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

        A recurrent sequence then holds no token at all, unless it keeps them all: those before `length` have
        to be evaluated again, from position 0 on, where a recurrent state begins anew.
        """
        if not 0 <= length <= self.lengths[sequence]:
            raise UsageError(f"rewind: wanted 0 to {self.lengths[sequence]} tokens to keep; got {length}")
        if self.recurrent and length < self.lengths[sequence]:
            length = 0
        held = self._held[sequence]
        while len(held) > -(-length // self.block_size):
            self._free.append(held.pop())
        self.lengths[sequence] = length
