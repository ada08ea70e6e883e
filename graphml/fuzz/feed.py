"""What a random graph reads: token ids, positions, cells and block tables of some texts, and splits of them.

Like the engine's steps: the texts of a step are in rows side by side, each goes on where it was, its cells
are in blocks anywhere in the cache. Knows the inputs of `StepBuilder` by name; no graph.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from graphml.ir.dtype import F32
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.ops.linear import encode
from graphml.ir.shape import resolve

N_VOCAB = 19


@dataclass(frozen=True)
class Feed:
    """The tokens of some texts, in the order of the rows of one step.

    sequences: the text of each token. blocks: of each text, the blocks of the cache that are its own.
    """

    sequences: tuple[int, ...]
    tokens: tuple[int, ...]
    blocks: tuple[tuple[int, ...], ...]
    block_size: int

    n_vocab = N_VOCAB

    @property
    def n_tokens(self) -> int:
        """Rows of the whole."""
        return len(self.sequences)

    @property
    def n_sequences(self) -> int:
        """Texts."""
        return len(self.blocks)

    @property
    def n_cells(self) -> int:
        """Cells of the cache."""
        return self.n_sequences * len(self.blocks[0]) * self.block_size

    @property
    def dims(self) -> Mapping[str, int]:
        """The values of the symbols of the whole step."""
        return {"T": self.n_tokens, "O": self.n_tokens, "S": self.n_sequences, "C": self.n_cells,
                "B": len(self.blocks[0])}  # fmt: skip

    @cached_property
    def inputs(self) -> Mapping[str, Array]:
        """Name -> array of the inputs that `StepBuilder` knows, of the whole as one step."""
        return self.of_rows(range(self.n_tokens))

    def of_rows(self, rows: Sequence[int]) -> Mapping[str, Array]:
        """The same of some rows as a step, behind the steps of the rows before them."""
        chosen = np.array(list(rows), np.int64)
        texts = np.array(self.sequences)
        positions = np.array([int((texts[:i] == text).sum()) for i, text in enumerate(texts)])
        table = np.array(self.blocks, np.int32)
        cells = table[texts, positions // self.block_size] * self.block_size + positions % self.block_size
        until = int(chosen[-1]) + 1 if len(chosen) else 0
        lengths = np.array([int((texts[:until] == sequence).sum()) for sequence in range(self.n_sequences)])
        arrays = {
            "tokens": np.array(self.tokens)[chosen],
            "positions": positions[chosen],
            "sequences": texts[chosen],
            "cells": cells[chosen],
            "block_table": table,
            "lengths": lengths,
            "output_rows": np.arange(len(chosen)),
        }
        return {name: np.asarray(array, np.int32) for name, array in arrays.items()}

    def state(self, leaf: Node, numbers: np.random.Generator) -> Array:
        """A state as a text finds it that begins where others were: anything finite."""
        shape = resolve(leaf.shape, self.dims)
        values = numbers.standard_normal(shape).astype(np.float32)
        return values if leaf.dtype is F32 else encode(values, leaf.dtype)

    def splits(self, choose: random.Random) -> list[range]:
        """The rows of the whole cut into steps of random lengths."""
        cuts = [0]
        while cuts[-1] < self.n_tokens:
            cuts.append(min(cuts[-1] + choose.choice((1, 1, 2, 3, 5)), self.n_tokens))
        return [range(a, b) for a, b in itertools.pairwise(cuts)]


def random_feed(choose: random.Random, numbers: np.random.Generator) -> Feed:
    """Some texts of some tokens, in rows side by side or one after the other."""
    n_texts, count = choose.choice((1, 1, 2, 3)), choose.choice((1, 2, 3, 5, 8, 13))
    texts = [choose.randrange(n_texts) for _ in range(count)]
    if choose.random() < 0.5:
        texts.sort()
    block_size = choose.choice((4, 8))
    each = -(-count // block_size)
    order = choose.sample(range(n_texts * each), n_texts * each)
    blocks = tuple(tuple(order[i * each : (i + 1) * each]) for i in range(n_texts))
    tokens = tuple(int(token) for token in numbers.integers(0, N_VOCAB, count))
    return Feed(tuple(texts), tokens, blocks, block_size)
