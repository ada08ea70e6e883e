"""A step plan's inputs of a program: ids, positions, cells, block tables, output rows.

Knows plans, blocks and arrays; nothing of programs or states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from graphml.compiler.options import CompileOptions
from graphml.ir.cell_groups import CellGroup
from graphml.ir.cells import BLOCK_SIZE, TABLE_WIDTH, cells_of
from graphml.ir.long_texts import LongerThan, long_values
from graphml.ir.op import Array
from graphml.passes.lora import FACTORS
from graphml.runtime.blocks.window_blocks import WindowBlocks
from graphml.runtime.blocks.window_ring import WindowRing
from graphml.runtime.plans.plan_sources import show_sources
from graphml.runtime.plans.request_adapters import RequestAdapters
from graphml.runtime.plans.step_plan import StepPlan
from graphml.runtime.programs.step_inputs import write, write_blocks


class PlanInputs:
    """Writes the inputs of plans on `n_blocks` blocks, and on those of windows, for groups that have one.

    sizes: the dims that are the same in every step, of its states too. windows: group -> its blocks; None:
    the sequences' own. longer: inputs that say which rows are of long texts; n_ctx: tokens of a context.
    """

    def __init__(
        self,
        groups: Iterable[CellGroup],
        windows: Mapping[CellGroup, WindowBlocks | WindowRing],
        n_blocks: int,
        max_sequences: int,
        adapters: RequestAdapters,
        options: CompileOptions,
        longer: Mapping[str, LongerThan],
        n_ctx: int,
    ) -> None:
        self._max_sequences, self._adapters, self._options = max_sequences, adapters, options
        self._longer, self._n_ctx = longer, n_ctx
        self._windows = {group: windows.get(group) for group in groups}
        self.sizes = {"S": max_sequences, "C": n_blocks * BLOCK_SIZE}
        without = [group.input("cells") for group, window in self._windows.items() if window is None]
        self.of_blocks = ("cells", *without)
        """The inputs that name cells of the sequences' own blocks, which go where those go."""
        for group, window in self._windows.items():
            self.sizes[group.symbol] = (n_blocks if window is None else window.n_blocks) * BLOCK_SIZE

    def fill(
        self, feed: Mapping[str, Array], plan: StepPlan, options: CompileOptions | None, alone: bool = False
    ) -> dict[str, int]:
        """Write a plan's inputs; the step's dims. A step without output rows gives its first, unread.

        alone: the program is one for a single sequence, whose slot is the first then.
        """
        lengths = np.zeros(1 if alone else self._max_sequences, np.int32)
        tokens, positions, cells, slots = np.empty((4, plan.n_rows), np.int32)
        outputs: list[int] = []
        of_groups: dict[str, list[Array]] = {}
        row = 0
        for rows in plan.rows:
            sequence, start, count = rows.sequence, rows.start, rows.count
            slot, blocks = 0 if alone else sequence.slot, sequence.table(start + count)
            if count == 1:  # of a batch nearly all, and NumPy takes as long for a row as for a hundred
                tokens[row] = sequence.id_at(start) if rows.ids is None else rows.ids[0]
                positions[row] = start
                cells[row] = blocks[start // BLOCK_SIZE] * BLOCK_SIZE + start % BLOCK_SIZE
                slots[row] = slot
            else:
                at = slice(row, row + count)
                tokens[at] = sequence.ids_at(start, count) if rows.ids is None else rows.ids
                positions[at] = np.arange(start, start + count, dtype=np.int32)
                cells[at] = cells_of(blocks, positions[at])
                slots[at] = slot
            first, row = row, row + count
            outputs += range(row - rows.n_outputs, row)
            lengths[slot] = start + count - sequence.request.n_unseen
            write_blocks(feed, "block_table", slot, blocks)
            for group, window in self._windows.items():
                own = blocks if window is None else np.maximum(window.of[blocks], 0)
                write_blocks(feed, group.input("block_table"), slot, own)
                of_groups.setdefault(group.input("cells"), []).append(cells_of(own, positions[first:row]))
        inputs = {
            "tokens": tokens, "positions": positions, "cells": cells, "sequences": slots,
            "output_rows": np.array(outputs or [0], np.int32), "lengths": lengths,
        }  # fmt: skip
        if self._longer:
            of_texts = [length for rows in plan.rows for length in [rows.sequence.n_text] * rows.count]
            inputs |= long_values(self._longer, np.maximum(of_texts, positions + 1), self._n_ctx)
        for name, parts in of_groups.items():
            inputs[name] = np.concatenate(parts)
        write(feed, {**inputs, **plan.inputs})
        if FACTORS in feed:
            self._adapters.write(feed, plan, options or self._options)
        if "source_lengths" in feed:
            show_sources(feed, plan)
        sizes = self.sizes | {"S": 1} if alone else self.sizes
        return {"T": row, "O": len(inputs["output_rows"]), "B": TABLE_WIDTH, **sizes}
