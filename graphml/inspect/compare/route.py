"""The steps of a judged run: long and far enough to cross all boundaries.

Boundaries of cache blocks, of kernels' tiles, of windows, and of the context that a model was trained for.
Knows graphs and numbers; runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphml.ir.cells import BLOCK_SIZE, MAX_CELLS
from graphml.ir.op import Array
from graphml.ir.shape import bound
from graphml.runtime.programs.executor import Executor

FEW, FAR, TOGETHER = 6, 3, 70  # tokens of steps; odd and even, and more than a tile of 64 rows
TOKENS = 79  # a few, one alone, 71 across two cache blocks and a tile, and one after them
FAR_BYTES = 256 << 20  # limit of the keys that a token attends to: the reference converts them to float64


@dataclass(frozen=True)
class Leg:
    """One step of a run.

    counts: tokens of each sequence of the cache. at: their first position; None: after the sequences' last
    tokens. Positions between are cache blocks of earlier tokens, repeated. whole: all values are judged; else
    the first and the last of those computed alike.
    """

    name: str
    counts: tuple[int, ...]
    at: int | None = None
    whole: bool = True


def usual(count: int) -> list[Leg]:
    """All tokens but the last in one batch, then the last alone."""
    return [leg for leg in (Leg("prefill", (count - 1,)), Leg("decode", (1,))) if leg.counts[0]]


def wide(executor: Executor, count: int) -> list[Leg]:
    """Few tokens, one alone, the others of `count` but one, the end of the context, and two sequences.

    All values of the first two steps are judged; of the others those that depend on length or position.
    """
    n_ctx = min(int(executor.config.n_ctx), MAX_CELLS)
    count = min(count, n_ctx)
    legs = usual(min(count, FEW + 1))
    more = min(count - FEW - 2, executor.n_batch)
    if more > 0:
        legs += [Leg("long", (more,), whole=False), Leg("long decode", (1,), whole=False)]
    end = min(n_ctx, _reach(executor))
    if end - FAR - 1 >= count:
        legs += [Leg("far", (FAR,), end - FAR - 1, False), Leg("far decode", (1,), whole=False)]
    many = min(TOGETHER, executor.n_batch, count)
    first = many * 4 // 7
    if first + 2 <= n_ctx and 0 < first < many:
        legs += [
            Leg("two sequences", (first, many - first), whole=False),
            Leg("two sequences decode", (1, 1), whole=False),
            Leg("second sequence alone", (0, 1), whole=False),
        ]
    return legs


def by_token(legs: Sequence[Leg]) -> list[Leg]:
    """The same tokens, one of each sequence in a step; steps of several are numbered from 0."""
    token_legs = []
    for leg in legs:
        longest = max(leg.counts)
        for i in range(longest):
            name = f"{leg.name} {i}" if longest > 1 else leg.name
            counts = tuple(int(i < count) for count in leg.counts)
            token_legs.append(Leg(name, counts, leg.at if i == 0 else None, leg.whole))
    return token_legs


def _reach(executor: Executor) -> int:
    """The most positions that a token may attend to within the judge's limit of memory."""
    row = 1
    for node in executor.build(1, 1).nodes:
        if node.op.family == "attention":
            row = max(row, bound(node.inputs[0].shape[1]) * bound(node.inputs[0].shape[-1]) * 8)
    return FAR_BYTES // row


class PositionCells:
    """Cache cells of the positions in a run; blocks are in another order than positions."""

    def __init__(self, legs: Sequence[Leg]) -> None:
        self.lengths = [0] * len(legs[0].counts)
        blocks = sum(count // BLOCK_SIZE + 2 for leg in legs for count in leg.counts if count)
        self.n_cells = blocks * BLOCK_SIZE
        self._free = list(range(blocks))
        self._blocks: list[list[int]] = [[] for _ in self.lengths]
        self._generator = np.random.default_rng(0)

    def step(self, leg: Leg) -> dict[str, Array]:
        """The inputs of a step with the cells of its tokens."""
        places = [self._append(s, count, leg.at) for s, count in enumerate(leg.counts) if count]
        positions = np.concatenate(places).astype(np.int32)
        sequences = np.repeat(np.arange(len(leg.counts), dtype=np.int32), leg.counts)
        table = np.zeros((len(self.lengths), max(map(len, self._blocks))), np.int32)
        for s, blocks in enumerate(self._blocks):
            table[s, : len(blocks)] = blocks
        cells = table[sequences, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        return {
            "positions": positions, "cells": cells.astype(np.int32), "sequences": sequences,
            "lengths": np.array(self.lengths, np.int32), "block_table": table,
            "output_rows": (np.cumsum([count for count in leg.counts if count]) - 1).astype(np.int32),
        }  # fmt: skip

    def _append(self, sequence: int, count: int, at: int | None) -> Array:
        blocks, start = self._blocks[sequence], self.lengths[sequence]
        if at is not None:
            seen = blocks[: max(start // BLOCK_SIZE, 1)]
            skipped = at // BLOCK_SIZE - len(blocks)
            blocks += [seen[i] for i in self._generator.integers(0, len(seen), max(skipped, 0))]
            start = at
        while len(blocks) * BLOCK_SIZE < start + count:
            blocks.append(self._free.pop())
        self.lengths[sequence] = start + count
        return np.arange(start, start + count)
