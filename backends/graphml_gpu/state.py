"""A session's state on a device: a buffer per state leaf, mirrored in NumPy where somebody looks at it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

import numpy as np

from graphml.errors import BackendError
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.shape import resolve
from graphml_gpu.driver import Buffer, Driver
from graphml_gpu.memory import Memory

_CACHE_DIMENSIONS = 3


class GpuState:
    """See `graphml.backend.State`.

    A state that may be a cache, [cell, head, d], has a row of zeros behind its last: what cells that there
    are not read as.

    `array` gives a copy in main memory. What is written there is taken over by the next run of a program,
    after which the array is of the past: whoever wants to see more asks again.
    """

    def __init__(self, memory: Memory, graph: Graph, dims: Mapping[str, int]) -> None:
        self._memory = memory
        self._buffers: dict[str, Buffer] = {}
        self._shapes: dict[str, tuple[Node, tuple[int, ...]]] = {}
        self._mirrors: dict[str, Array] = {}
        self._given: set[str] = set()
        limit = memory.driver.facts.max_binding_bytes
        for name, node in graph.leaves("state").items():
            sizes = resolve(node.shape, dims)
            n_bytes = prod(sizes[:-1]) * node.dtype.bytes_for(sizes[-1])
            if len(sizes) == _CACHE_DIMENSIONS:
                n_bytes += n_bytes // max(sizes[0], 1)
            if n_bytes > limit:
                raise BackendError(
                    f"state {name}: {n_bytes} bytes for {dict(dims)}, and one binding of"
                    f" {memory.driver.facts.name} holds {limit}: give a shorter context"
                )
            self._buffers[name] = memory.buffer(self, n_bytes, f"state {name}")
            self._shapes[name] = node, sizes

    @property
    def n_bytes(self) -> int:
        """Bytes of all states."""
        return sum(buffer.n_bytes for buffer in self._buffers.values())

    @property
    def names(self) -> Iterable[str]:
        """What the state holds."""
        return self._buffers.keys()

    def array(self, name: str) -> Array:
        """A state as it is now, to read, save or write to before the next run."""
        with self._memory.lock:
            mirror = self.peek(name)
            self._given.add(name)
            return mirror

    def peek(self, name: str) -> Array:
        """The same for those who only read it."""
        if name not in self._mirrors:
            buffer, (node, sizes) = self._buffers[name], self._shapes[name]
            (raw,) = self._driver.read([(buffer, 0, buffer.n_bytes)])
            plain = raw[: prod(sizes[:-1]) * node.dtype.bytes_for(sizes[-1])]
            self._mirrors[name] = self.viewed(name, plain)
        return self._mirrors[name]

    def read_rows(self, names: Sequence[str], runs: Sequence[tuple[int, int]]) -> dict[str, Array]:
        """See `graphml.backend.RowsState`; one transfer for all of them."""
        with self._memory.lock:
            self.flush()
            ranges = [self._range(name, run) for name in names for run in runs]
            raw = iter(self._driver.read(ranges))
            rows = {}
            for name in names:
                row = self._row_bytes(name)
                parts = [next(raw)[first * row % 4 :][: count * row] for first, count in runs]
                whole = (
                    parts[0].copy() if len(parts) == 1 else np.concatenate([np.empty(0, np.uint8), *parts])
                )
                rows[name] = self.viewed(name, whole)
            return rows

    def write_rows(self, runs: Sequence[tuple[int, int]], values: Mapping[str, Array]) -> None:
        """See `graphml.backend.RowsState`."""
        with self._memory.lock:
            self.flush()
            for name, value in values.items():
                row, at = self._row_bytes(name), 0
                raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
                for run in runs:
                    buffer, offset, n_bytes = self._range(name, run)
                    data = raw[at : at + run[1] * row]
                    at += data.size
                    if n_bytes != data.size:  # devices write whole words
                        (words,) = self._driver.read([(buffer, offset, n_bytes)])
                        words[run[0] * row - offset :][: data.size] = data
                        data = words
                    self._driver.write(buffer, offset, data)
            self.changed(values)

    def copy_rows(self, names: Sequence[str], copies: Sequence[tuple[int, int, int]]) -> None:
        """See `graphml.backend.RowsState`."""
        with self._memory.lock:
            self.flush()
            for name in names:
                row, buffer = self._row_bytes(name), self._buffers[name]
                for source, target, count in copies:
                    if source * row % 4 or target * row % 4 or count * row % 4:
                        self.write_rows([(target, count)], self.read_rows([name], [(source, count)]))
                    else:
                        self._driver.copy(buffer, source * row, buffer, target * row, count * row)
            self.changed(names)

    def _row_bytes(self, name: str) -> int:
        node, sizes = self._shapes[name]
        return prod(sizes[:-1]) * node.dtype.bytes_for(sizes[-1]) // sizes[0]

    def _range(self, name: str, run: tuple[int, int]) -> tuple[Buffer, int, int]:
        """The whole words that hold a run of rows."""
        row = self._row_bytes(name)
        first, end = run[0] * row // 4 * 4, -(-(run[0] + run[1]) * row // 4) * 4
        return self._buffers[name], first, end - first

    def viewed(self, name: str, raw: Array) -> Array:
        """Bytes of whole rows, as the state's dtype is held in NumPy."""
        node, sizes = self._shapes[name]
        plain = raw if node.dtype.numpy is None else raw.view(node.dtype.numpy)
        per_entry = node.dtype.bytes_for(sizes[-1]) // plain.itemsize
        return plain.reshape(-1, *sizes[1:-1], per_entry) if len(sizes) > 1 else plain

    def buffer(self, name: str) -> Buffer:
        """The place of a state; a `BackendError` if the state was made for another graph."""
        if name not in self._buffers:
            raise BackendError(f"the session's state has no {name!r}: it was made for another graph")
        return self._buffers[name]

    def flush(self) -> None:
        """Take over what was written to arrays; before dispatches that may read it."""
        for name in self._given:
            data = np.ascontiguousarray(self._mirrors[name]).reshape(-1).view(np.uint8)
            self._memory.write(self._buffers[name], 0, data)
        self._given.clear()

    def changed(self, names: Iterable[str]) -> None:
        """The device has changed, or is about to change, these states."""
        if self._mirrors:
            for name in names:
                self._mirrors.pop(name, None)

    def row_copies(self, names: Sequence[str], count: int) -> GpuCopies:
        """See `graphml.backend.CopyingState`."""
        with self._memory.lock:
            return GpuCopies(self, self._memory, {name: self._row_bytes(name) for name in names}, count)

    @property
    def _driver(self) -> Driver:
        return self._memory.driver


class GpuCopies:
    """See `graphml.backend.RowCopies`. row_bytes: of each state, multiples of 4."""

    def __init__(self, state: GpuState, memory: Memory, row_bytes: Mapping[str, int], count: int) -> None:
        self._state, self._memory, self._row_bytes = state, memory, row_bytes
        self._buffers = {
            name: memory.buffer(self, count * size, f"copies of {name}") for name, size in row_bytes.items()
        }

    def keep(self, row: int, at: int) -> None:
        """On the device, in the order of its steps."""
        with self._memory.lock:
            self._state.flush()
            for name, size in self._row_bytes.items():
                source = self._state.buffer(name)
                self._memory.driver.copy(source, row * size, self._buffers[name], at * size, size)

    def restore(self, at: int, row: int) -> None:
        """On the device, in the order of its steps."""
        with self._memory.lock:
            self._state.flush()
            for name, size in self._row_bytes.items():
                target = self._state.buffer(name)
                self._memory.driver.copy(self._buffers[name], at * size, target, row * size, size)
            self._state.changed(self._row_bytes)

    def read(self, at: int) -> dict[str, Array]:
        """One transfer, after the steps so far."""
        with self._memory.lock:
            self._state.flush()
            sizes = self._row_bytes.items()
            raw = self._memory.driver.read([(self._buffers[name], at * size, size) for name, size in sizes])
            return {
                name: self._state.viewed(name, array)[0].copy()
                for (name, _), array in zip(sizes, raw, strict=True)
            }

    def write(self, at: int, rows: Mapping[str, Array]) -> None:
        """Before the next step."""
        with self._memory.lock:
            for name, size in self._row_bytes.items():
                raw = np.ascontiguousarray(rows[name]).reshape(-1).view(np.uint8)
                self._memory.driver.write(self._buffers[name], at * size, raw)
