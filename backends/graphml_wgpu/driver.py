"""A GPU driven by wgpu: memory, uploads and copies, recordings and their submission.

Knows nothing of graphs. All but the calls of each step (`encode`) goes through wgpu-py's public interface.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
from graphml_gpu.buffers import Buffers, Used, as_bytes, raw
from graphml_gpu.driver import Bound, Buffer, Bytes, DispatchRecording, Facts, Groups, Range

from graphml.backend import Progress, no_progress
from graphml_wgpu import adapters
from graphml_wgpu.encode import CommandBuffer, Queue
from graphml_wgpu.errors import reported, unlogged
from graphml_wgpu.pipelines import Pipelines
from graphml_wgpu.read_back import ReadBack, fits
from graphml_wgpu.ready_commands import AHEAD, ReadyCommands, UnderWay
from graphml_wgpu.timestamps import Timestamps

UPLOAD = 32 << 20
"""Bytes that are written at once: as much staging memory is needed beside them."""


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
        self._workers, self._under_way = ThreadPoolExecutor(AHEAD, "graphml-wgpu"), UnderWay()
        self._pipelines = Pipelines(self._device, lavapipe=self.facts.name.startswith("llvmpipe"))
        self._read_back = ReadBack(self._device, self._queue, self.facts.name)
        self._timestamps = Timestamps(self._device, self._queue, self._read_back, self.facts)
        self._between: Any = None

    @property
    def allocated_bytes(self) -> int:
        """See `graphml_gpu.driver.Driver`."""
        return self.buffers.n_bytes

    def buffer(self, n_bytes: int, label: str) -> Buffer:
        """See `graphml_gpu.driver.Driver`."""

        def make(size: int, what: str) -> Any:
            with reported(f"{self.facts.name}: {what}"):
                return self._device.create_buffer(
                    label=label, size=size, usage="STORAGE | UNIFORM | COPY_SRC | COPY_DST"
                )

        def destroy(buffer: Any) -> None:
            self._under_way.wait()  # what begins after this finds the buffer released
            buffer.destroy()

        return self.buffers.allocate(self.facts, n_bytes, label, make, destroy)

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
        return self._read_back.read(ranges)

    def later(self, ranges: Sequence[Range]) -> Callable[[], list[Bytes]]:
        """See `graphml_gpu.driver.Driver`."""
        if not fits(ranges):
            arrays = self.read(ranges)
            return lambda: arrays
        staging, commands = self._read_back.copied(ranges)
        return self._read_back.after(ranges, staging, self._queue.hand_over(commands))

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
            progress("record", i, len(dispatches))
            with reported(f"{self.facts.name}: kernel {bound.kernel.title}: cannot be bound"):
                calls.append(self._pipelines.call(bound))
        progress("record", len(dispatches), len(dispatches))
        return WgpuRecording(calls, Used(dispatches), ReadyCommands(self._workers))

    def submit(
        self,
        recording: DispatchRecording,
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
            self._timestamps.submit(mine.calls, np.array(groups, np.uint32).reshape(-1, 3))
            return self.later(reads)
        key = tuple(groups), tuple(copies)
        commands = mine.ready.take(key)

        def encode(encoder: Any) -> None:
            self._copies(encoder, copies)
            self._queue.compute(encoder, mine.calls, np.array(groups, np.uint32).reshape(-1, 3))

        def encoded() -> CommandBuffer:
            with self._under_way:
                mine.used.check(self.buffers.n_released)
                return self._queue.encode(encode)

        if commands is None:
            commands = encoded()
        elif not fits(reads):
            self._queue.check()
        if fits(reads):
            staging, reading = self._read_back.copied(reads)
            read = self._read_back.after(reads, staging, self._queue.hand_over(commands, reading))
        else:
            self._queue.hand_over(commands)
            read = self.later(reads)
        mine.ready.prepare(encoded)
        return read

    def _copies(self, encoder: Any, copies: Sequence[tuple[Range, Range]]) -> None:
        for (source, begin, n_bytes), (target, at, _) in copies:
            self._queue.copy(encoder, raw(source)._internal, begin, raw(target)._internal, at, n_bytes)

    def times(self) -> list[tuple[int, int]]:
        """See `graphml_gpu.driver.Driver`."""
        return self._timestamps.read()

    def wait(self) -> None:
        """See `graphml_gpu.driver.Driver`."""
        self._queue.wait()

    def close(self) -> None:
        """See `graphml_gpu.driver.Driver`."""
        self._workers.shutdown(cancel_futures=True)
        with unlogged():
            self._device.destroy()


def _addresses(objects: Sequence[Any]) -> list[int]:
    """The handles of wgpu-py's objects, as numbers."""
    from wgpu.backends.wgpu_native import _ffi

    return [int(_ffi.ffi.cast("uintptr_t", wrapper._internal)) for wrapper in objects]


def _whole_words(chunk: Bytes) -> Bytes:
    """Bytes with zeros up to a multiple of 4."""
    return chunk if len(chunk) % 4 == 0 else np.concatenate((chunk, np.zeros(-len(chunk) % 4, np.uint8)))
