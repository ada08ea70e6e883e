"""Times of a program's steps: the threads' counters in seconds on `perf_counter`'s clock.

Knows timed tapes and the counter; nothing of kernels or addresses.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from graphml.backend import StepTime, TakeTimes
from graphml.ir.node import Node
from graphml_cpu.tape import Tape
from graphml_cpu.workers import Team

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Clock:
    """Turns counter values into seconds: both clocks are read at the first run and after the latest.

    The farther the two readings are apart, the less it matters how long the reading takes.
    """

    def __init__(self) -> None:
        self._start_s: float | None = None
        self._start, self._tick_s = 0, 0.0

    def read(self, before: float, first: int, after: float, last: int) -> None:
        """Take in a run: `first` and `last` of the counter lie between the seconds `before` and `after`."""
        if self._start_s is None:
            self._start_s, self._start = before, first
        # A counter that stands still, as where it cannot be read, makes every time zero.
        self._tick_s = (after - self._start_s) / (last - self._start) if last > self._start else 0.0

    def seconds(self, ticks: Integers) -> Floats:
        """Ticks as seconds."""
        return np.multiply(ticks, self._tick_s, dtype=np.float64)

    def at(self, counters: Integers) -> Floats:
        """When the counter stood so, on `perf_counter`'s clock."""
        return self.seconds(counters - self._start) + np.float64(self._start_s or 0.0)


class Timer:
    """Times the parts of one program's runs; who wants the times gets a function that works them out."""

    def __init__(self, take: TakeTimes) -> None:
        self._take, self._clock = take, Clock()
        self._parts: list[Callable[[], list[StepTime]]] = []

    def begin(self) -> None:
        """A new run; what an aborted one left is forgotten."""
        self._parts = []

    def walk(self, team: Team, tape: Tape, nodes: Sequence[Node]) -> None:
        """Run a timed tape; `nodes` are those of its steps."""
        before = time.perf_counter()
        finished = team.run(tape)
        after = time.perf_counter()
        if finished:
            counters = tape.counters().copy()
            self._clock.read(before, int(counters[0, 0]), after, int(counters[0, -1]))
            self._parts.append(functools.partial(self._step_times, tape, nodes, counters))

    def call(
        self, node: Node, function: Callable[[Mapping[str, int]], None], dims: Mapping[str, int]
    ) -> None:
        """Run what the calling thread does alone."""
        begin = time.perf_counter()
        function(dims)
        taken = StepTime(node, (begin,), (time.perf_counter() - begin,), (0.0,))
        self._parts.append(lambda: [taken])

    def finish(self, dims: Mapping[str, int]) -> None:
        """Hand over the times of the run."""
        parts = self._parts
        self._take(dict(dims), lambda: [step for part in parts for step in part()])

    def _step_times(self, tape: Tape, nodes: Sequence[Node], counters: Integers) -> list[StepTime]:
        begins = self._clock.at(counters[:, :-1:2]).T.tolist()
        work, wait = self._clock.seconds(np.diff(counters, axis=1)).reshape(tape.n_threads, -1, 2).T
        rows = zip(nodes, tape.steps, begins, work.tolist(), wait.tolist(), strict=True)
        return [
            StepTime(node, tuple(begin), tuple(worked), tuple(waited), step.replicated)
            for node, step, begin, worked, waited in rows
        ]
