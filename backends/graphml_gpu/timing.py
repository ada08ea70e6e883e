"""Times of a program's dispatches: the device's timestamps on `perf_counter`'s clock.

Knows recordings and nodes; nothing of graphs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from graphml.backend import StepTime, TakeTimes
from graphml.ir.node import Node
from graphml_gpu.driver import DispatchRecording, Driver, Groups, Range


class GpuTimer:
    """Times the parts of one program's runs. Only the differences of a device's timestamps mean anything:

    the last dispatch of a submit is taken to end when the host learns that it has.
    """

    def __init__(self, take: TakeTimes, driver: Driver) -> None:
        self._take, self._driver = take, driver
        self._steps: list[StepTime] = []
        self._until = 0.0

    def begin(self) -> None:
        """A new run; what an aborted one left is forgotten."""
        self._steps = []
        self._until = time.perf_counter()

    def submit(
        self,
        recording: DispatchRecording,
        groups: Sequence[Groups],
        nodes: Sequence[Node],
        copies: Sequence[tuple[Range, Range]] = (),
    ) -> None:
        """Run dispatches and wait for their times; `nodes` are those that they work at."""
        self._driver.submit(recording, groups, timed=True, copies=copies)
        times = self._driver.times()
        now = time.perf_counter()
        last = max((end for _, end in times), default=0)
        for node, grid, (begin, end) in zip(nodes, groups, times, strict=True):
            if not all(grid):
                continue
            # Neighbours may overlap on the device; in a table each counts from where the one before ended.
            starts = max(now - (last - begin) * 1e-9, self._until)
            self._until = max(now - (last - end) * 1e-9, starts)
            self._steps.append(StepTime(node, (starts,), (self._until - starts,), (0.0,)))

    def call(self, node: Node, function: Callable[[], None]) -> None:
        """Run what is done in NumPy."""
        begin = time.perf_counter()
        function()
        self._until = time.perf_counter()
        self._steps.append(StepTime(node, (begin,), (self._until - begin,), (0.0,)))

    def finish(self, dims: Mapping[str, int]) -> None:
        """Hand over the times of the run."""
        steps = self._steps
        self._take(dict(dims), lambda: steps)
