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
from graphml_cpu.runtime.tape import Tape
from graphml_cpu.runtime.workers import Team

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_READINGS = 8


class Clock:
    """Turns the counter's values into seconds: both clocks are read one after the other, twice.

    The farther the two readings are apart, the less it matters how long a reading takes. One that takes long,
    because the system gave the processor to somebody else in between, is not used.
    """

    def __init__(self, counter: Callable[[], int]) -> None:
        self._counter = counter
        self._quickest = float("inf")
        self._first = self._last = (0.0, 0)
        self._first = min((self._reading() for _ in range(_READINGS)), key=lambda reading: reading[0])[1]

    def _reading(self) -> tuple[float, tuple[float, int]]:
        """How long a reading took, and both clocks."""
        before = time.perf_counter()
        counter = self._counter()
        taken = time.perf_counter() - before
        self._quickest = min(self._quickest, taken)
        return taken, (before, counter)

    def read(self) -> None:
        """Read both clocks again, to know the counter's unit better; the first time until it goes quickly."""
        for _ in range(_READINGS if self._last[1] == 0 else 1):
            taken, reading = self._reading()
            if taken < 4 * self._quickest:
                self._last = reading
                return
        if self._last[1] == 0:
            self._last = reading

    def seconds(self, ticks: Integers) -> Floats:
        """Ticks as seconds."""
        (start_s, start), (end_s, end) = self._first, self._last
        # A counter that stands still, as where it cannot be read, makes every time zero.
        tick_s = (end_s - start_s) / (end - start) if end > start else 0.0
        return np.multiply(ticks, tick_s, dtype=np.float64)

    def at(self, counters: Integers) -> Floats:
        """When the counter stood so, on `perf_counter`'s clock."""
        return self.seconds(counters - self._first[1]) + np.float64(self._first[0])


class CpuTimer:
    """Times the parts of one program's runs; who wants the times gets a function that works them out."""

    def __init__(self, take: TakeTimes, team: Team) -> None:
        self._take, self._team = take, team
        self._no_steps = Tape([], team.n_threads, timed=True)
        self._clock = Clock(self._read_counter)
        self._parts: list[Callable[[], list[StepTime]]] = []

    def _read_counter(self) -> int:
        """Walk a tape without steps: all that it does is to read the counter."""
        self._team.run(self._no_steps)
        return int(self._no_steps.counters()[0, 0])

    def begin(self) -> None:
        """A new run; what an aborted one left is forgotten."""
        self._parts = []

    def walk(self, tape: Tape, nodes: Sequence[Node]) -> None:
        """Run a timed tape; `nodes` are those of its steps."""
        if self._team.run(tape):
            counters = tape.counters().copy()
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
        self._clock.read()
        self._take(dict(dims), lambda: [step for part in parts for step in part()])

    def _step_times(self, tape: Tape, nodes: Sequence[Node], counters: Integers) -> list[StepTime]:
        begins = self._clock.at(counters[:, :-1:2]).T.tolist()
        work, wait = self._clock.seconds(np.diff(counters, axis=1)).reshape(tape.n_threads, -1, 2).T
        rows = zip(nodes, tape.steps, begins, work.tolist(), wait.tolist(), strict=True)
        return [
            StepTime(node, tuple(begin), tuple(worked), tuple(waited), step.replicated, step.barrier)
            for node, step, begin, worked, waited in rows
        ]
