"""The program of several parts: they run in order, values pass between devices through host arrays.

Where each part is elsewhere and passes its values on itself, a step is submitted to all of them at once.

Knows devices only through `graphml.backend`; nothing of how a graph is cut into parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphml.backend import (
    PassingProgram,
    Program,
    RestartingState,
    RowCopies,
    State,
    StepTime,
    SubmittedStep,
    TakeTimes,
    TimedProgram,
)
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
        made_by: dict[str, int] = {}
        self._sources: list[list[int]] = []  # of each part: the parts whose values it reads
        for i, part in enumerate(parts):
            crossing = {name.removeprefix(COPY): node for name, node in part.graph.outputs.items()
                        if name.startswith(COPY)}  # fmt: skip
            leaves = part.graph.leaves("input")
            self._sources.append(sorted({made_by[name] for name in leaves if name in made_by}))
            self._crossing |= {name: _link(node) for name, node in crossing.items()}
            made_by |= dict.fromkeys(crossing, i)
            for name, node in leaves.items():
                if name not in self._crossing:
                    self._given.setdefault(name, _link(node))
        apart = [program for program in programs if isinstance(program, PassingProgram)]
        is_staged = len(parts) == len(apart) == len({part.backend for part in parts})
        self._stages = apart if is_staged else []
        self._links = self._given | self._crossing
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

    @property
    def n_stages(self) -> int:
        """See `graphml.backend.StagedProgram`: as many as parts, each of which is on another device."""
        return len(self._stages) or 1

    def submit(self, dims: Mapping[str, int], state: State) -> Callable[[], dict[str, Array]]:
        """See `graphml.backend.StagedProgram`."""
        states, steps = self._states(state), list[SubmittedStep]()
        for part, program, sources in zip(self.parts, self._stages, self._sources, strict=True):
            self._write_inputs(program, dims, self._given)
            before = [steps[i] for i in sources]
            steps.append(program.submit_part(dims, states.get(part.backend, _NO_STATE), before))

        def outputs() -> dict[str, Array]:
            return {name: value for step in steps for name, value in step.outputs().items()}

        return outputs

    def _states(self, state: State) -> Mapping[str, State]:
        if not isinstance(state, PartsState) or state.homes != self._homes:
            raise BackendError("the session's state was made for another placement than the program")
        return state.states

    @staticmethod
    def _write_inputs(program: Program, dims: Mapping[str, int], links: Mapping[str, _Link]) -> None:
        for name, array in program.inputs.items():
            if name in links:
                values = links[name].window(dims)
                array[tuple(map(slice, values.shape))] = values

    def run(self, dims: Mapping[str, int], state: State) -> dict[str, Array]:
        """Run the parts in order; see `graphml.backend.Program`."""
        if self._stages:
            return self.submit(dims, state)()
        states = self._states(state)
        self._times = []
        outputs: dict[str, Array] = {}
        for i, (part, program) in enumerate(zip(self.parts, self.programs, strict=True)):
            self._write_inputs(program, dims, self._links)
            results = program.run(dims, states.get(part.backend, _NO_STATE))
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
