"""A device whose logits are a function of exactly the ids in the cells and states that a step reads.

So the slightest difference between what a session says that it holds and what its cache holds is another
row of logits, and a step takes microseconds. Graphs, executor, cache and sessions are the real ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from graphml_reference.device import ReferenceDevice

import graphml
from graphml.backend import Plan, Progress, State
from graphml.ir.graph import Graph
from graphml.ir.interpreter import evaluate
from graphml.ir.op import Array
from graphml.ir.shape import bounds, resolve
from graphml.passes.cell_moves import SOURCES, TARGETS

NO_SOURCE: tuple[int, ...] = ()


@lru_cache(maxsize=1 << 14)
def row_of(source: tuple[int, ...], ids: tuple[int, ...], n_vocab: int) -> Array:
    """The logits after these ids, float32 [n_vocab]."""
    return np.random.default_rng([len(source), *source, *ids]).standard_normal(n_vocab, np.float32)


class RememberingState:
    """Which id is in which cell, and of a recurrent sequence all ids since its position 0."""

    n_bytes = 0

    def __init__(self, n_cells: int, n_sequences: int) -> None:
        self.cells = np.full(n_cells, -1, np.int64)
        self.source = np.full(n_cells, -1, np.int64)
        self.seen: list[tuple[int, ...]] = [()] * n_sequences

    def array(self, name: str) -> Array:
        """Not asked for."""
        raise KeyError(name)

    def row_copies(self, names: Sequence[str], count: int) -> RememberingCopies:
        """See `graphml.backend.CopyingState`."""
        return RememberingCopies(self, count)


class SharedState(RememberingState):
    """One whose cells are also copied by rows; every name of a state is the same cells."""

    def read_rows(self, names: Sequence[str], runs: Sequence[tuple[int, int]]) -> dict[str, Array]:
        """Nothing is asked for."""
        assert not names
        return {}

    def write_rows(self, runs: Sequence[tuple[int, int]], values: Mapping[str, Array]) -> None:
        """A shift moves ids by a program; there is nothing besides."""
        assert not values

    def copy_rows(self, names: Sequence[str], copies: Sequence[tuple[int, int, int]]) -> None:
        """See `graphml.backend.RowsState`."""
        for source, target, count in copies:
            self.cells[target : target + count] = self.cells[source : source + count]


class RememberingCopies:
    """Copies of what sequences have seen, each made and restored id by id."""

    def __init__(self, state: RememberingState, count: int) -> None:
        self._state = state
        self.copies: list[list[int]] = [[] for _ in range(count)]

    def keep(self, row: int, at: int) -> None:
        """See `graphml.backend.RowCopies`."""
        copy = self.copies[at]
        copy.clear()
        for one in self._state.seen[row]:
            copy.append(one)

    def restore(self, at: int, row: int) -> None:
        """See `graphml.backend.RowCopies`."""
        seen = self._state.seen
        seen[row] = ()
        for one in self.copies[at]:
            seen[row] = (*seen[row], one)


class RememberingProgram:
    """Writes the ids to cells and states, reads them back from there, and makes rows of what it has read."""

    runs_ahead = True

    def __init__(self, graph: Graph, step_s: float) -> None:
        self._graph, self._step_s = graph, step_s
        self.inputs = {
            name: np.zeros(bounds(node.shape), node.dtype.numpy)
            for name, node in graph.leaves("input").items()
        }
        self._per_token = tuple(name for name in self.inputs if name in PER_TOKEN)
        self._recurrent = any(node.op.recurrent for node in graph.nodes)
        self._candidates = [node for node in graph.nodes if node.name.startswith("candidates.")]
        outputs = set(graph.outputs.values())
        self._given = [  # all of them only where something is made of them
            node for node in graph.leaves("input").values() if self._candidates or node in outputs
        ]
        self._latest: dict[str, Array] = {}

    def run(self, dims: Mapping[str, int], state: State) -> dict[str, Array]:
        """Run one step."""
        assert isinstance(state, RememberingState)
        if self._step_s:  # sleep(0) waits, too, for about 0.06 ms
            time.sleep(self._step_s)
        if SOURCES in self.inputs:
            sources, targets = (self.inputs[name][: dims["T"]] for name in (SOURCES, TARGETS))
            state.cells[targets] = state.cells[sources]
            return {}
        encoder = "embeddings" in self._graph.outputs
        rows = [self._token(t, state, encoder) for t in range(dims["T"])]
        if encoder:
            return {"embeddings": np.zeros((dims["T"], 1), np.float32)}
        n_vocab = int(resolve(self._graph.outputs["logits"].shape, dims)[-1])
        picked = self.inputs["output_rows"][: dims["O"]] if "output_rows" in self.inputs else range(dims["T"])
        logits = np.stack([row_of(*rows[row], n_vocab) for row in picked])
        self._latest = self._outputs(logits, dims)
        return self._latest

    def begin(
        self, dims: Mapping[str, int], state: State, fed: Mapping[str, str], wanted: Sequence[str]
    ) -> Callable[[], Mapping[str, Array]]:
        """Run one step at once; see `graphml.backend.AheadProgram`."""
        for name, output in fed.items():
            self.inputs[name][: dims["T"]] = self._latest[output][: dims["T"]]
        made = self.run(dims, state)
        return lambda: {name: made[name] for name in wanted}

    def _token(
        self, t: int, state: RememberingState, encoder: bool
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The source and the ids that token `t` sees."""
        given = {name: int(self.inputs[name][t]) for name in self._per_token}
        token, position = given["tokens"], given.get("positions", 0)
        sequence = given.get("sequences", 0)
        if self._recurrent:
            state.seen[sequence] = (*(state.seen[sequence] if position else ()), token)
        if "cells" not in self.inputs:
            return NO_SOURCE, state.seen[sequence]
        cells = state.source if encoder else state.cells
        cells[given["cells"]] = token
        if encoder:
            return NO_SOURCE, NO_SOURCE
        ids = self._read(cells, "block_table", sequence, position + 1)
        if self._recurrent:
            assert ids == state.seen[sequence]
        if "source_table" not in self.inputs:
            return NO_SOURCE, ids
        count = int(self.inputs["source_lengths"][sequence])
        return self._read(state.source, "source_table", sequence, count), ids

    def _read(self, cells: Array, table: str, sequence: int, count: int) -> tuple[int, ...]:
        blocks = self.inputs[table][sequence, : -(-count // BLOCK)].tolist()
        ids = [one for block in blocks for one in cells[block * BLOCK : (block + 1) * BLOCK].tolist()]
        assert len(ids) >= count
        return tuple(ids[:count])

    def _outputs(self, logits: Array, dims: Mapping[str, int]) -> dict[str, Array]:
        """The logits, and what the graph makes of them."""
        values = {self._graph.outputs["logits"]: logits}
        for node in self._given:
            values[node] = self.inputs[node.name][tuple(map(slice, resolve(node.shape, dims)))]
        for node in self._candidates:
            values[node] = evaluate(node, values)
        return {name: values[node] for name, node in self._graph.outputs.items()}


BLOCK = 32
"""Cells of a block."""
PER_TOKEN = ("tokens", "positions", "sequences", "cells")


class RememberingDevice(ReferenceDevice):
    """See above. shares: sessions share steps; step_s: how long each takes."""

    def __init__(self, shares: bool = False, step_s: float = 0.0) -> None:
        super().__init__()
        self.lazy_states, self._step_s = shares, step_s

    def lower(  # type: ignore[override]
        self, graph: Graph, plan: Plan, weights: Mapping[str, Array], progress: Progress
    ) -> RememberingProgram:
        """The graph as it is, of which only inputs and outputs count."""
        return RememberingProgram(graph, self._step_s)

    def state(self, graph: Graph, dims: Mapping[str, int]) -> RememberingState:  # type: ignore[override]
        """Nothing is remembered yet."""
        return (SharedState if self.lazy_states else RememberingState)(dims["C"], dims["S"])


def load(
    path: Path, reads_back: bool = False, n_batch: int = 8, shares: bool = False, step_s: float = 0.0
) -> graphml.Model:
    """A model on this device. reads_back: as a GPU, which has the top k of a row and runs ahead."""
    model = graphml.load(path, backend="reference", n_batch=n_batch, kv="f32")
    executor = model.executor
    executor.programs.device = RememberingDevice(shares, step_s)
    executor.programs.backend = replace(executor.backend, reads_back=reads_back)
    return model
