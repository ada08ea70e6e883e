"""A GPU driven by wgpu: memory, uploads and read-back, recordings and their timestamps.

Knows nothing of graphs. All but the calls of each step (`encode`) goes through wgpu-py's public interface.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
from graphml_gpu.buffers import Buffers, Used, as_bytes, raw
from graphml_gpu.driver import Bound, Buffer, Bytes, Facts, Groups, Range, Recording

from graphml.backend import Progress, no_progress
from graphml.errors import BackendError
from graphml_wgpu import adapters
from graphml_wgpu.encode import Commands, Queue
from graphml_wgpu.errors import reported, unlogged
from graphml_wgpu.pipelines import Pipelines
from graphml_wgpu.ready_commands import AHEAD, ReadyCommands

UPLOAD = 32 << 20
"""Bytes that are handed over at once: as much staging memory is needed beside them."""
READBACK = 64 << 20
"""Most bytes that are read back at once."""
QUERIES = 4096
"""Timestamps in a query set: the most that WebGPU allows."""


class WgpuRecording:
    """Dispatches with handles for `encode`, and the wgpu objects that these belong to.

    calls: see `encode.Calls`. ready: command buffers made ahead.
    """

    def __init__(self, calls: Sequence[tuple[Any, Any]], used: Used, ready: ReadyCommands) -> None:
        self._kept = calls
        self.calls = np.array([_addresses(pair) for pair in calls], np.uint64).reshape(-1, 2)
        self.used, self.ready = used, ready

    def __len__(self) -> int:
        return len(self.calls)


class WgpuDriver:
    """See `graphml_gpu.driver.Driver`. limits: less than the adapter has. buffers: what is allocated."""

    def __init__(self, adapter: Any = None, limits: Mapping[str, int] = adapters.NO_LIMITS) -> None:
        adapter = adapters.adapters()[adapters.used()] if adapter is None else adapter
        self.facts: Facts = adapters.facts(adapter, limits)
        self.buffers = Buffers()
        wanted = [name for name in adapters.FEATURES if name in adapter.features]
        with reported(f"{self.facts.name}: cannot be opened"):
            # what no limit is asked for is as the adapter has it
            self._device = adapter.request_device_sync(
                label="graphml", required_features=wanted, required_limits={**limits}
            )
        self._queue = Queue(self._device)
        self._workers = ThreadPoolExecutor(AHEAD, "graphml-wgpu")
        self._pipelines = Pipelines(self._device, stored=self.facts.name.startswith("llvmpipe"))
        self._staging: Any = None
        self._spare: list[Any] = []
        self._between: Any = None
        self._resolved: Any = None
        self._queries: list[Any] = []
        self._timed = 0

    def buffer(self, n_bytes: int, label: str) -> Buffer:
        """See `graphml_gpu.driver.Driver`."""

        def make(size: int, what: str) -> Any:
            with reported(f"{self.facts.name}: {what}"):
                return self._device.create_buffer(
                    label=label, size=size, usage="STORAGE | UNIFORM | COPY_SRC | COPY_DST"
                )

        return self.buffers.allocate(self.facts, n_bytes, label, make, lambda made: made.destroy())

    def write(self, buffer: Buffer, offset: int, data: Any) -> None:
        """See `graphml_gpu.driver.Driver`."""
        source = as_bytes(data)
        handle = raw(buffer)._internal
        for begin in range(0, len(source), UPLOAD):
            self._queue.write(handle, offset + begin, _whole_words(source[begin : begin + UPLOAD]))
            if len(source) > UPLOAD:  # or wgpu keeps staging memory for all of it
                self._device.queue.submit([])
                self._queue.wait()

    def read(self, ranges: Sequence[Range]) -> list[Bytes]:
        """See `graphml_gpu.driver.Driver`."""
        found = [np.empty(n_bytes, np.uint8) for _, _, n_bytes in ranges]
        for batch in _batches(ranges):
            places, total = [], 0
            for i, begin, n_bytes in batch:
                places.append((i, begin, n_bytes, total))
                total += n_bytes
            staging, self._staging = self._staging_of(total), None  # nobody's again if this is interrupted

            def encode(encoder: Any, places: Any = places, staging: Any = staging) -> None:
                for i, begin, n_bytes, at in places:
                    buffer, offset, _ = ranges[i]
                    source = raw(buffer)._internal
                    self._queue.copy(encoder, source, offset + begin, staging._internal, at, n_bytes)

            def take(data: Bytes, places: Any = places) -> None:
                for i, begin, n_bytes, at in places:
                    found[i][begin : begin + n_bytes] = data[at : at + n_bytes]

            number = self._queue.submit(encode)
            self._queue.mapped(self._queue.map(staging, total, number), take)
            self._staging = staging
        return found

    def later(self, ranges: Sequence[Range]) -> Callable[[], list[Bytes]]:
        """See `graphml_gpu.driver.Driver`."""
        if not _fits(ranges):
            found = self.read(ranges)
            return lambda: found
        staging, commands = self._reading(ranges)
        return self._read_later(ranges, staging, self._queue.hand_over(commands))

    def _reading(self, ranges: Sequence[Range]) -> tuple[Any, Commands]:
        """Memory for what some ranges hold, and the commands that copy it there."""
        total = sum(n_bytes for _, _, n_bytes in ranges)
        staging = self._spare.pop() if self._spare else None
        if staging is None or staging.size < total:
            staging = self._readable(total)

        def encode(encoder: Any) -> None:
            at = 0
            for buffer, offset, n_bytes in ranges:
                self._queue.copy(encoder, raw(buffer)._internal, offset, staging._internal, at, n_bytes)
                at += n_bytes

        return staging, self._queue.encode(encode)

    def _read_later(
        self, ranges: Sequence[Range], staging: Any, submission: int
    ) -> Callable[[], list[Bytes]]:
        """What waits for the submission that copies some ranges."""
        ends = list(itertools.accumulate(n_bytes for _, _, n_bytes in ranges))
        mapping = self._queue.map(staging, ends[-1], submission)

        def take(data: Bytes, found: list[Bytes]) -> None:
            own = data.copy()
            found += [own[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]

        def wait() -> list[Bytes]:
            found: list[Bytes] = []
            self._queue.mapped(mapping, lambda data: take(data, found))
            self._spare.append(staging)  # one that nobody waited for is not used again
            return found

        return wait

    def copy(
        self, source: Buffer, source_offset: int, target: Buffer, target_offset: int, n_bytes: int
    ) -> None:
        """See `graphml_gpu.driver.Driver`."""
        begin, end = raw(source), raw(target)
        if begin is not end:
            self._copy(begin, source_offset, end, target_offset, n_bytes)
            return
        for at in range(0, n_bytes, UPLOAD):  # WebGPU copies between different buffers only
            size = min(UPLOAD, n_bytes - at)
            if self._between is None or self._between.size < size:
                with reported(f"{self.facts.name}: no memory to copy {size} bytes by way of"):
                    self._between = self._device.create_buffer(size=size, usage="COPY_SRC | COPY_DST")
            self._copy(begin, source_offset + at, self._between, 0, size)
            self._copy(self._between, 0, end, target_offset + at, size)

    def _copy(self, source: Any, begin: int, target: Any, offset: int, n_bytes: int) -> None:
        self._queue.submit(
            lambda encoder: self._queue.copy(
                encoder, source._internal, begin, target._internal, offset, n_bytes
            )
        )

    def clear(self, buffer: Buffer, offset: int, n_bytes: int) -> None:
        """See `graphml_gpu.driver.Driver`."""
        handle = raw(buffer)._internal
        self._queue.submit(lambda encoder: self._queue.clear(encoder, handle, offset, n_bytes))

    def record(self, dispatches: Sequence[Bound], progress: Progress = no_progress) -> WgpuRecording:
        """See `graphml_gpu.driver.Driver`."""
        calls = []
        for i, bound in enumerate(dispatches):
            progress("compile", i, len(dispatches))
            with reported(f"{self.facts.name}: kernel {bound.kernel.title}: cannot be bound"):
                calls.append(self._pipelines.call(bound))
        progress("compile", len(dispatches), len(dispatches))
        return WgpuRecording(calls, Used(dispatches), ReadyCommands(self._workers))

    def submit(
        self,
        recording: Recording,
        groups: Sequence[Groups],
        timed: bool = False,
        copies: Sequence[tuple[Range, Range]] = (),
        reads: Sequence[Range] = (),
    ) -> Callable[[], list[Bytes]]:
        """See `graphml_gpu.driver.Driver`."""
        mine = cast(WgpuRecording, recording)
        mine.used.check(self.buffers.n_released)
        if timed:
            self._queue.submit(lambda encoder: self._copies(encoder, copies))
            self._submit_timed(mine, groups)
            return self.later(reads)
        key = tuple(groups), tuple(copies)
        commands = mine.ready.take(key)

        def encode(encoder: Any) -> None:
            self._copies(encoder, copies)
            self._queue.compute(encoder, mine.calls, np.array(groups, np.uint32).reshape(-1, 3))

        def encoded() -> Commands:
            return self._queue.encode(encode)

        if commands is None:
            commands = encoded()
        elif not _fits(reads):
            self._queue.check()
        if _fits(reads):
            staging, reading = self._reading(reads)
            found = self._read_later(reads, staging, self._queue.hand_over(commands, reading))
        else:
            self._queue.hand_over(commands)
            found = self.later(reads)
        mine.ready.prepare(encoded)
        return found

    def _copies(self, encoder: Any, copies: Sequence[tuple[Range, Range]]) -> None:
        for (source, begin, n_bytes), (target, at, _) in copies:
            self._queue.copy(encoder, raw(source)._internal, begin, raw(target)._internal, at, n_bytes)

    def _submit_timed(self, recording: WgpuRecording, groups: Sequence[Groups]) -> None:
        if not self.facts.has_timestamps:
            raise BackendError(f"{self.facts.name}: has no timestamps (the feature timestamp-query)")
        self._timed = len(recording)
        self._make_queries(2 * len(recording))

        grids = np.array(groups, np.uint32).reshape(-1, 3)

        def encode(encoder: Any) -> None:
            for i in range(len(recording)):
                queries, first = divmod(2 * i, QUERIES)
                call, grid = recording.calls[i : i + 1], grids[i : i + 1]
                self._queue.compute_timed(encoder, call, grid, self._queries[queries]._internal, first)
            for i in range(0, 2 * len(recording), QUERIES):
                n = min(QUERIES, 2 * len(recording) - i)
                queries = self._queries[i // QUERIES]._internal
                self._queue.resolve(encoder, queries, n, self._resolved._internal, 8 * i)

        self._queue.submit(encode)

    def _make_queries(self, n: int) -> None:
        if n > QUERIES * len(self._queries):
            with reported(f"{self.facts.name}: timestamps cannot be taken"):
                while n > QUERIES * len(self._queries):
                    self._queries.append(self._device.create_query_set(type="timestamp", count=QUERIES))
                self._resolved = self._device.create_buffer(
                    label="timestamps",
                    size=8 * QUERIES * len(self._queries),
                    usage="QUERY_RESOLVE | COPY_SRC",
                )

    def times(self) -> list[tuple[int, int]]:
        """See `graphml_gpu.driver.Driver`."""
        if not self._timed:
            return []
        n_bytes = 16 * self._timed
        staging, self._staging = self._staging_of(n_bytes), None
        number = self._queue.submit(
            lambda encoder: self._queue.copy(
                encoder, self._resolved._internal, 0, staging._internal, 0, n_bytes
            )
        )
        ticks = np.empty((self._timed, 2), np.uint64)

        def take(data: Bytes) -> None:
            ticks[...] = data.view(np.uint64).reshape(-1, 2)

        self._queue.mapped(self._queue.map(staging, n_bytes, number), take)
        self._staging = staging
        period = self._queue.period_ns()
        first = ticks[0, 0]
        return [(round(int(b - first) * period), round(int(e - first) * period)) for b, e in ticks]

    def wait(self) -> None:
        """See `graphml_gpu.driver.Driver`."""
        self._queue.wait()

    def close(self) -> None:
        """See `graphml_gpu.driver.Driver`."""
        self._workers.shutdown(cancel_futures=True)
        with unlogged():
            self._device.destroy()

    def _staging_of(self, n_bytes: int) -> Any:
        """Memory of at least so many bytes that can be mapped for reading."""
        if self._staging is None or self._staging.size < n_bytes:
            if self._staging is not None:
                self._staging.destroy()
            self._staging = self._readable(n_bytes)
        return self._staging

    def _readable(self, n_bytes: int) -> Any:
        with reported(f"{self.facts.name}: no memory to read {n_bytes} bytes back"):
            return self._device.create_buffer(
                label="read back", size=1 << max(12, (n_bytes - 1).bit_length()), usage="COPY_DST | MAP_READ"
            )


def _addresses(objects: Sequence[Any]) -> list[int]:
    """The handles of wgpu-py's objects, as numbers."""
    from wgpu.backends.wgpu_native import _ffi

    return [int(_ffi.ffi.cast("uintptr_t", one._internal)) for one in objects]


def _fits(ranges: Sequence[Range]) -> bool:
    """Whether ranges are read back at once."""
    return 0 < sum(n_bytes for _, _, n_bytes in ranges) <= READBACK


def _whole_words(chunk: Bytes) -> Bytes:
    """Bytes with zeros up to a multiple of 4."""
    return chunk if len(chunk) % 4 == 0 else np.concatenate((chunk, np.zeros(-len(chunk) % 4, np.uint8)))


def _batches(ranges: Sequence[Range]) -> Iterator[list[tuple[int, int, int]]]:
    """Pieces (number of the range, first byte within it, bytes) that together fit into the staging memory."""
    batch: list[tuple[int, int, int]] = []
    room = READBACK
    for i, (_, _, n_bytes) in enumerate(ranges):
        begin = 0
        while begin < n_bytes:
            if not room:
                yield batch
                batch, room = [], READBACK
            size = min(room, n_bytes - begin)
            batch.append((i, begin, size))
            begin, room = begin + size, room - size
    if batch:
        yield batch
