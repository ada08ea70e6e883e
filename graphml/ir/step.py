"""The inputs of a step, which every graph of a model shares, and the bounds of its dimensions.

Knows names, types and shapes of inputs; nothing of the values computed from them.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphml.ir.builder import BaseBuilder
from graphml.ir.cache_types import cache_types
from graphml.ir.cell_groups import CellGroup
from graphml.ir.dtype import I32
from graphml.ir.node import Node
from graphml.ir.op import Type
from graphml.ir.ops.leaf import input_leaf
from graphml.ir.shape import Symbol


@dataclass(frozen=True)
class WrittenCache:
    """The keys and values that a layer has written, and to the cells of which group; None: sees all.

    blocks: of the Hadamard transforms of keys and of values; 0 for none.
    """

    keys: Node
    values: Node
    group: CellGroup | None
    blocks: tuple[int, int]


class StepBuilder(BaseBuilder):
    """Builds the graph of one step of at most `max_tokens` tokens.

    max_outputs: the bound of output rows; T in a step of one token. max_sequences, max_cells, block_size: of
    the cache; cache_dtype: how keys and values are kept, by layer too (`graphml.ir.cache_types`);
    causal: the default of attention, without later tokens; caches: the prefix of the names of states for keys
    and values. windows: layers that see a window or a chunk have cells of their own (`cell_groups`).
    """

    def __init__(
        self,
        max_tokens: int = 512,
        max_outputs: int = 512,
        max_sequences: int = 1,
        max_cells: int = 1 << 20,
        block_size: int = 32,
        cache_dtype: str = "f16",
        causal: bool = True,
        caches: str = "cache",
        windows: bool = True,
    ) -> None:
        super().__init__()
        self.causal, self.caches, self.windows = causal, caches, windows
        self.hidden: Node | None = None  # the input of the logits, once they are built
        self.every_hidden: Node | None = None  # of all tokens
        self.kept: dict[int, WrittenCache] = {}  # by each layer so far
        self.n_tokens = Symbol("T", max_tokens)
        # In a step of one token its row is the output row, so no gather is needed.
        self.n_outputs = Symbol("O", max_outputs) if max_tokens > 1 else self.n_tokens
        self.n_sequences = Symbol("S", max_sequences)
        self.n_cells = Symbol("C", max_cells)
        self.n_blocks = Symbol("B", -(-max_cells // block_size))
        self.block_size = block_size
        self.cache_types = cache_types(cache_dtype)

    @property
    def tokens(self) -> Node:
        """Token ids, i32 [T]."""
        return self.leaf(input_leaf, "tokens", Type(I32, (self.n_tokens,)))

    @property
    def positions(self) -> Node:
        """Position of each token in its sequence, i32 [T]."""
        return self.leaf(input_leaf, "positions", Type(I32, (self.n_tokens,)))

    @property
    def sequences(self) -> Node:
        """Row of each token in the block table, i32 [T]."""
        return self.leaf(input_leaf, "sequences", Type(I32, (self.n_tokens,)))

    @property
    def cells(self) -> Node:
        """Cache cell of each token's key and value, i32 [T]."""
        return self.cells_of(None)

    @property
    def block_table(self) -> Node:
        """Cache blocks of each sequence, i32 [S, B]."""
        return self.block_table_of(None)

    def cells_of(self, group: CellGroup | None) -> Node:
        """`cells` of a group of layers; None: of those that see all."""
        name = "cells" if group is None else group.input("cells")
        return self.leaf(input_leaf, name, Type(I32, (self.n_tokens,)))

    def block_table_of(self, group: CellGroup | None) -> Node:
        """`block_table` of a group of layers: B is the same, what is behind the window is not read."""
        name = "block_table" if group is None else group.input("block_table")
        return self.leaf(input_leaf, name, Type(I32, (self.n_sequences, self.n_blocks)))

    def n_cells_of(self, group: CellGroup | None) -> Symbol:
        """How many cells a group of layers has."""
        return self.n_cells if group is None else Symbol(group.symbol, self.n_cells.bound)

    @property
    def lengths(self) -> Node:
        """Tokens of each sequence after this step, i32 [S]."""
        return self.leaf(input_leaf, "lengths", Type(I32, (self.n_sequences,)))

    @property
    def output_rows(self) -> Node:
        """Output rows, whose logits are computed, i32 [O]."""
        return self.leaf(input_leaf, "output_rows", Type(I32, (self.n_outputs,)))

    @property
    def source_table(self) -> Node:
        """Cache blocks of each sequence's source text, which an encoder has read, i32 [S, B]."""
        return self.leaf(input_leaf, "source_table", Type(I32, (self.n_sequences, self.n_blocks)))

    @property
    def source_lengths(self) -> Node:
        """Tokens of each sequence's source text, i32 [S]."""
        return self.leaf(input_leaf, "source_lengths", Type(I32, (self.n_sequences,)))
