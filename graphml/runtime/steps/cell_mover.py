"""Moves cells of a cache on a device: a context shift, and copies for sequences that go apart.

Knows programs, states and cells; nothing of ids, blocks or sequences.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from graphml.backend import Backend, Device, Program, State
from graphml.compiler.compile import compile_graph
from graphml.compiler.multi_device import PartsDevice
from graphml.compiler.options import CompileOptions
from graphml.compiler.parts_program import PartsState
from graphml.errors import UsageError
from graphml.ir.long_texts import long_values
from graphml.ir.op import Array
from graphml.passes.cell_moves import (
    SOURCES,
    TARGETS,
    CellMoves,
    cell_moves,
    why_not_shifted,
)
from graphml.runtime.blocks.state_rows import read_rows, write_rows
from graphml.runtime.programs.executor import Executor

MAX_ROWS = 256  # cells moved by one run


def why_no_shift(executor: Executor) -> str | None:
    """Why this model's tokens cannot be moved to other positions; None where they can."""
    name = executor.architecture.name
    if not executor.architecture.causal:
        return f"in {name} tokens see those after them, so that all of a text is evaluated at once"
    reason = why_not_shifted(executor.build(1, 1))
    return None if reason is None else f"{name} has no context shift: {reason}"


def check_shifts(executor: Executor, what: str) -> None:
    """UsageError for a model whose tokens cannot be moved; what: the argument that asks for it."""
    reason = why_no_shift(executor)
    if reason is not None:
        raise UsageError(f"{what}: {reason}")


@dataclass(frozen=True, eq=False)
class CellMove:
    """Cells of a cache of `n_cells` whose rows go to others, and their positions by a difference.

    sources, targets: int32 [n]; a source that is also a target is so at its own place or a later one: nothing
    is read after it was written. difference 0: a copy, to the last bit. n_ctx: tokens of a text that is moved
    since its context is full. cells: the input of the step's graph that says where such rows are written.
    """

    sources: Array
    targets: Array
    difference: int
    n_cells: int
    n_ctx: int
    cells: str = "cells"


def prepare_moves(executor: Executor, state: State, rotates: bool) -> None:
    """Compile what moves cells."""
    with executor.lock:
        for cells in ("cells", *(group.input("cells") for group in executor.cell_groups)):
            for _ in _movers(executor, state, rotates, cells):
                pass


def move_cells(executor: Executor, state: State, move: CellMove) -> None:
    """Move cells on the device of each state."""
    with executor.lock:
        executor.n_steps += 1  # what the step before has left in the arena may be gone
        count = len(move.sources)
        dims = {"C" + move.cells.removeprefix("cells"): move.n_cells}
        for own, moves, program in _movers(executor, state, move.difference != 0, move.cells):
            for start in range(0, count if moves.graph.nodes else 0, MAX_ROWS):
                rows = slice(start, min(start + MAX_ROWS, count))
                dims["T"] = rows.stop - start
                inputs = {
                    SOURCES: move.sources[rows], TARGETS: move.targets[rows],
                    **long_values(executor.long_inputs, np.full(dims["T"], move.n_ctx), move.n_ctx),
                }  # fmt: skip
                for name, feed in program.inputs.items():
                    feed[: dims["T"]] = inputs.get(name, move.difference)
                program.run(dims, own)
            write_rows(own, move.targets, read_rows(own, moves.raw, move.sources))


def _movers(
    executor: Executor, state: State, rotates: bool, cells: str
) -> Iterator[tuple[State, CellMoves, Program]]:
    """The part of the state on each device, and what moves its cells."""
    device = executor.device
    if not isinstance(device, PartsDevice) or not isinstance(state, PartsState):
        yield state, *_mover(executor, executor.backend, device, rotates, cells, None)
        return
    for backend in device.backends:
        names = frozenset(name for name, home in state.homes.items() if home == backend.name)
        if names:
            own = device.devices[backend.name]
            yield state.states[backend.name], *_mover(executor, backend, own, rotates, cells, names)


def _mover(
    executor: Executor,
    backend: Backend,
    device: Device,
    rotates: bool,
    cells: str,
    names: frozenset[str] | None,
) -> tuple[CellMoves, Program]:
    """The moves of some states, compiled when first asked for."""
    key = backend.name, cells if rotates else f"{cells}, copied", names
    if key not in executor.movers:
        moves = cell_moves(executor.build(1, 1), MAX_ROWS, rotates, names, cells)
        options = CompileOptions(executor.options.fuse)
        compiled = compile_graph(moves.graph, backend, device, executor.weights, options=options)
        executor.movers[key] = moves, compiled.program
    return executor.movers[key]
