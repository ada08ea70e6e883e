"""The parts of an engine's state that a store keeps: blocks of cells, windows, source texts; copied states.

Knows arrays and numbers of blocks and copies; nothing of tokens, files or when something is copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from graphml.backend import RowCopies, State
from graphml.ir.cell_groups import CellGroup
from graphml.ir.cells import BLOCK_SIZE
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.runtime.blocks.block_content import CELLS
from graphml.runtime.blocks.source_blocks import SOURCE
from graphml.runtime.blocks.state_rows import StateRow, held_rows, read_rows, state_names, write_rows
from graphml.runtime.plans.checkpoints import STATES


class StateParts:
    """nodes: kind of part -> name of an array -> its state, of all that sequences go on from.

    rows: kind -> name -> what a part that a store keeps is in it; none where parts are not all. leaves: those
    states; those in `of_source` hold what an encoder has read. groups: whose windows have cells of their own.
    copies: of the states of sequences, where there are any.
    """

    def __init__(
        self,
        state: State,
        leaves: Mapping[str, Node],
        of_source: Iterable[str],
        groups: Iterable[CellGroup],
        copies: RowCopies | None,
    ) -> None:
        self._state, self._copies = state, copies
        names, read = state_names(leaves.values()), set(of_source)
        kinds = {
            CELLS: [name for name in names.cells if name not in read],
            SOURCE: [name for name in names.cells if name in read],
            **{group.name: names.windows.get(group.symbol, ()) for group in groups},
            STATES: names.sequences,
        }
        self.nodes = {kind: {name: leaves[name] for name in some} for kind, some in kinds.items() if some}
        self.rows = {
            kind: {name: StateRow(*held_rows(node, BLOCK_SIZE)) for name, node in nodes.items()}
            for kind, nodes in self.nodes.items()
            if kind != STATES
        }
        if STATES in self.nodes and copies is not None:
            shapes = {name: held_rows(node, 1) for name, node in self.nodes[STATES].items()}
            self.rows[STATES] = {name: StateRow(shape[1:], dtype) for name, (shape, dtype) in shapes.items()}
        if {name for some in self.rows.values() for name in some} != set(leaves):
            self.rows = {}

    def read_rows(self, kind: str, rows: Array) -> dict[str, Array]:
        """Rows of the states of a kind (cells, or sequences) by name, the caller's own."""
        return read_rows(self._state, self.nodes[kind], rows)

    def write_rows(self, rows: Array, values: Mapping[str, Array]) -> None:
        """Write rows of states by name, between two steps."""
        write_rows(self._state, rows, values)

    def read(self, kind: str, numbers: list[int]) -> list[dict[str, Array]]:
        """The rows of some parts by name, the caller's own. Between two steps, or before one."""
        if kind == STATES:
            assert self._copies is not None
            return [self._copies.read(at) for at in numbers]
        values = self.read_rows(kind, block_cells(numbers))
        firsts = range(0, len(numbers) * BLOCK_SIZE, BLOCK_SIZE)
        return [{name: rows[at : at + BLOCK_SIZE] for name, rows in values.items()} for at in firsts]

    def write(self, kind: str, number: int, rows: Mapping[str, Array]) -> None:
        """Write the rows of a part, between two steps; of a block maybe its first cells alone."""
        if kind == STATES:
            assert self._copies is not None
            self._copies.write(number, rows)
        else:
            self.write_rows(block_cells([number])[: len(next(iter(rows.values())))], rows)


def block_cells(blocks: list[int]) -> Array:
    """The cells of blocks, in their order."""
    cells: Array = (np.array(blocks, np.int32)[:, None] * BLOCK_SIZE + np.arange(BLOCK_SIZE)).reshape(-1)
    return cells
