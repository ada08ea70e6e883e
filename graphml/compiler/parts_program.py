"""The program of several parts: they run in order, values pass between devices through host arrays.

Knows devices only through `graphml.backend`; nothing of how a graph is cut into parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphml.backend import Program, RestartingState, RowCopies, State, StepTime, TakeTimes, TimedProgram
from graphml.compiler.partitions import ReadyPart
from graphml.compiler.row_copies import row_copies
from graphml.errors import BackendError
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.shape import Shape, bounds, resolve
from graphml.passes.cut import COPY


class PartsState:
    """The states of a session, each on the device of its layer."""

    def __init__(self, states: Mapping[str, State], homes: Mapping[str, str]) -> None:
        self.states, self.homes = states, homes

    @property
    def n_bytes(self) -> int:
        """Bytes on all devices."""
        return sum(state.n_bytes for state in self.states.values())

    def array(self, name: str) -> Array:
        """The array of one state, wherever it is."""
        return self.states[self.homes[name]].array(name)

    def restart(self) -> None:
        """See `graphml.backend.RestartingState`; those of devices that cannot end stay as they are."""
        for state in self.states.values():
            if isinstance(state, RestartingState):
                state.restart()

    def row_copies(self, names: Sequence[str], count: int) -> PartsCopies:
        """See `graphml.backend.CopyingState`; each copy is on the device of its state."""
        at_home: dict[str, list[str]] = {}
        for name in names:
            at_home.setdefault(self.homes[name], []).append(name)
        return PartsCopies([row_copies(self.states[home], some, count) for home, some in at_home.items()])


class PartsCopies:
    """See `graphml.backend.RowCopies`."""

    def __init__(self, parts: Sequence[RowCopies]) -> None:
        self._parts = parts

    def keep(self, row: int, at: int) -> None:
        """On each device."""
        for part in self._parts:
            part.keep(row, at)

    def restore(self, at: int, row: int) -> None:
        """On each device."""
        for part in self._parts:
            part.restore(at, row)

    def read(self, at: int) -> dict[str, Array]:
        """Of all devices."""
        return {name: row for part in self._parts for name, row in part.read(at).items()}

    def write(self, at: int, rows: Mapping[str, Array]) -> None:
        """On each device, those that are its own."""
        for part in self._parts:
            part.write(at, rows)


@dataclass
class _Link:
    """A value of a step in a host array: an input, or one that passes between parts."""

    shape: Shape
    array: Array

    def window(self, dims: Mapping[str, int]) -> Array:
        return self.array[tuple(map(slice, resolve(self.shape, dims)))]


class PartsProgram:
    """See `graphml.backend.Program`. One run at a time."""

    def __init__(
        self, parts: Sequence[ReadyPart], programs: Sequence[Program], homes: Mapping[str, str]
    ) -> None:
        self.parts, self.programs, self._homes = tuple(parts), tuple(programs), homes
        self._crossing: dict[str, _Link] = {}
        self._given: dict[str, _Link] = {}
        for part in parts:
            crossing = {name.removeprefix(COPY): node for name, node in part.graph.outputs.items()
                        if name.startswith(COPY)}  # fmt: skip
            self._crossing |= {name: _link(node) for name, node in crossing.items()}
            for name, node in part.graph.leaves("input").items():
                if name not in self._crossing:
                    self._given.setdefault(name, _link(node))
        self.inputs: dict[str, Array] = {name: link.array for name, link in self._given.items()}
        self._take: TakeTimes | None = None
        self._times: list[Callable[[], Sequence[StepTime]]] = []

    def time_steps(self, take: TakeTimes | None) -> None:
        """See `graphml.backend.TimedProgram`; the times of all parts that can be timed are collected."""

        def collect(dims: Mapping[str, int], times: Callable[[], Sequence[StepTime]]) -> None:
            self._times.append(times)

        self._take = take
        for program in self.programs:
            if isinstance(program, TimedProgram):
                program.time_steps(None if take is None else collect)

    def run(self, dims: Mapping[str, int], state: State) -> dict[str, Array]:
        """Run the parts in order; see `graphml.backend.Program`."""
        if not isinstance(state, PartsState) or state.homes != self._homes:
            raise BackendError("the session's state was made for another placement than the program")
        self._times = []
        outputs: dict[str, Array] = {}
        for i, (part, program) in enumerate(zip(self.parts, self.programs, strict=True)):
            for name, array in program.inputs.items():
                values = (self._crossing.get(name) or self._given[name]).window(dims)
                array[tuple(map(slice, values.shape))] = values
            results = program.run(dims, state.states.get(part.backend, _NO_STATE))
            for name, value in results.items():
                if name.startswith(COPY):
                    self._crossing[name.removeprefix(COPY)].window(dims)[...] = value
                else:  # a copy, since a later part of the same device may overwrite the array
                    outputs[name] = value if i == len(self.parts) - 1 else value.copy()
        if self._take is not None:
            kept = self._times
            self._take(dict(dims), lambda: [step for times in kept for step in times()])
        return outputs


def _link(node: Node) -> _Link:
    return _Link(node.shape, np.zeros(bounds(node.shape), node.dtype.numpy))


_NO_STATE = PartsState({}, {})
