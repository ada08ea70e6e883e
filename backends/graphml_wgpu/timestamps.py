"""Times of a recording's dispatches, by timestamps that the device writes.

Knows recorded calls and query sets; nothing of kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from graphml_gpu.driver import Facts

from graphml.errors import BackendError
from graphml_wgpu.encode import Calls, Grids, Queue
from graphml_wgpu.errors import reported
from graphml_wgpu.read_back import ReadBack

QUERIES = 4096
"""Timestamps in a query set: the most that WebGPU allows."""


class Timestamps:
    """When each dispatch of the recording submitted last began and ended."""

    def __init__(self, device: Any, queue: Queue, read_back: ReadBack, facts: Facts) -> None:
        self._device, self._queue, self._read_back, self._facts = device, queue, read_back, facts
        self._resolved: Any = None
        self._queries: list[Any] = []
        self._timed = 0

    def submit(self, calls: Calls, grids: Grids) -> None:
        """Submit dispatches, each between two timestamps. BackendError where the device has none."""
        if not self._facts.has_timestamps:
            raise BackendError(f"{self._facts.name}: has no timestamps (the feature timestamp-query)")
        self._timed = len(calls)
        self._make_queries(2 * len(calls))

        def encode(encoder: Any) -> None:
            for i in range(len(calls)):
                queries, first = divmod(2 * i, QUERIES)
                call, grid = calls[i : i + 1], grids[i : i + 1]
                self._queue.compute_timed(encoder, call, grid, self._queries[queries]._internal, first)
            for i in range(0, 2 * len(calls), QUERIES):
                n = min(QUERIES, 2 * len(calls) - i)
                queries = self._queries[i // QUERIES]._internal
                self._queue.resolve(encoder, queries, n, self._resolved._internal, 8 * i)

        self._queue.submit(encode)

    def _make_queries(self, n: int) -> None:
        if n > QUERIES * len(self._queries):
            with reported(f"{self._facts.name}: timestamps cannot be taken"):
                while n > QUERIES * len(self._queries):
                    self._queries.append(self._device.create_query_set(type="timestamp", count=QUERIES))
                self._resolved = self._device.create_buffer(
                    label="timestamps",
                    size=8 * QUERIES * len(self._queries),
                    usage="QUERY_RESOLVE | COPY_SRC",
                )

    def read(self) -> list[tuple[int, int]]:
        """Nanoseconds from the first beginning: when each dispatch began and ended."""
        if not self._timed:
            return []
        ticks = self._read_back.first_bytes(self._resolved, 16 * self._timed).view(np.uint64).reshape(-1, 2)
        period = self._queue.period_ns()
        first = ticks[0, 0]
        return [(round(int(b - first) * period), round(int(e - first) * period)) for b, e in ticks]
