"""A device driven by OpenCL: memory, uploads and read-back, recordings and their timestamps.

Knows nothing of graphs. A recording holds a kernel object per dispatch, whose arguments are set once; a step
is a row of `clEnqueueNDRangeKernel`, about 1.5 us each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
from graphml_gpu.driver import Bound, Buffer, Bytes, Facts, Groups, Range, Recording

from graphml.backend import Progress, no_progress
from graphml.errors import BackendError
from graphml_opencl import devices
from graphml_opencl.programs import Programs

UPLOAD = 32 << 20
"""Bytes that are handed over at once."""
COPIED = 1 << 20
"""Writes up to so many bytes are copied first, so that they need not wait for what runs before them."""
PENDING = 256
"""Writes that may be on their way."""


class OpenclBuffer:
    """Memory of the device. raw: OpenCL's buffer."""

    def __init__(self, driver: OpenclDriver, raw: Any, n_bytes: int, label: str) -> None:
        self.raw, self.n_bytes, self.label = raw, n_bytes, label
        self._driver: OpenclDriver | None = driver
        self._regions: dict[tuple[int, int], Any] = {}

    def region(self, offset: int, n_bytes: int) -> Any:
        """A range as a buffer of its own."""
        if (offset, n_bytes) == (0, self.raw.size):
            return self.raw
        if (offset, n_bytes) not in self._regions:
            self._regions[offset, n_bytes] = self.raw.get_sub_region(offset, n_bytes)
        return self._regions[offset, n_bytes]

    def release(self) -> None:
        """See `graphml_gpu.driver.Buffer`."""
        if self._driver is not None:
            self._driver.n_bytes -= self.raw.size
            self._driver = None
            self._regions.clear()
            self.raw.release()


class OpenclRecording:
    """Dispatches: a kernel object each, with the size of its workgroup."""

    def __init__(self, calls: Sequence[tuple[Any, Groups]], kept: Sequence[Any]) -> None:
        self.calls = calls
        self._kept = kept

    def __len__(self) -> int:
        return len(self.calls)


class OpenclDriver:
    """See `graphml_gpu.driver.Driver`. n_bytes: of all its buffers."""

    def __init__(self, device: Any = None) -> None:
        import pyopencl

        self._cl = pyopencl
        device = devices.devices()[devices.used()] if device is None else device
        self.facts: Facts = devices.facts(device)
        self.n_bytes = 0
        with self._reported("cannot be opened"):
            self._context = pyopencl.Context([device])
            self._queue = pyopencl.CommandQueue(self._context)
        self._timing: Any = None
        self._programs = Programs(self._context, device, self.facts)
        self._pending: list[tuple[Any, Any]] = []
        self._events: list[Any] = []

    @contextmanager
    def _reported(self, what: str) -> Iterator[None]:
        """Raise what goes wrong within as a `BackendError`."""
        try:
            yield
        except self._cl.MemoryError as error:
            raise BackendError(f"{self.facts.name}: {what}: the device has no memory left") from error
        except self._cl.Error as error:
            raise BackendError(f"{self.facts.name}: {what}: {error}") from error

    def buffer(self, n_bytes: int, label: str) -> OpenclBuffer:
        """See `graphml_gpu.driver.Driver`."""
        facts, whole = self.facts, max(4, -(-n_bytes // 4) * 4)
        what = f"{label}: {n_bytes} bytes cannot be allocated ({self.n_bytes} are)"
        if whole > facts.max_buffer_bytes:
            raise BackendError(f"{facts.name}: {what}: a buffer holds at most {facts.max_buffer_bytes}")
        if facts.memory_bytes is not None and self.n_bytes + whole > facts.memory_bytes:
            raise BackendError(f"{facts.name}: {what}: the device has {facts.memory_bytes}")
        with self._reported(what):
            raw = self._cl.Buffer(self._context, self._cl.mem_flags.READ_WRITE, whole)
            # zeroed now: drivers that allocate late fail here, where it is clear for what
            self._cl.enqueue_fill_buffer(self._queue, raw, np.zeros(1, np.uint32), 0, whole)
            self._queue.finish()
        self.n_bytes += whole
        return OpenclBuffer(self, raw, n_bytes, label)

    def write(self, buffer: Buffer, offset: int, data: Any) -> None:
        """See `graphml_gpu.driver.Driver`."""
        source = _bytes(data)
        if not len(source):
            return
        with self._reported(f"{buffer.label}: cannot be written"):
            if len(source) <= COPIED:
                kept = source.copy()
                if len(self._pending) >= PENDING:
                    self._finish()
                self._pending.append((self._put(buffer, offset, kept, wait=False), kept))
                return
            for begin in range(0, len(source), UPLOAD):
                self._put(buffer, offset + begin, source[begin : begin + UPLOAD], wait=True)

    def _put(self, buffer: Buffer, offset: int, data: Bytes, wait: bool) -> Any:
        return self._cl.enqueue_copy(self._queue, _raw(buffer), data, dst_offset=offset, is_blocking=wait)

    def read(self, ranges: Sequence[Range]) -> list[Bytes]:
        """See `graphml_gpu.driver.Driver`."""
        found = [np.empty(n_bytes, np.uint8) for _, _, n_bytes in ranges]
        with self._reported("results cannot be read back"):
            events = [
                self._cl.enqueue_copy(self._queue, target, _raw(buffer), src_offset=offset, is_blocking=False)
                for target, (buffer, offset, n_bytes) in zip(found, ranges, strict=True)
                if n_bytes
            ]
            self._finish()
            del events
        return found

    def copy(
        self, source: Buffer, source_offset: int, target: Buffer, target_offset: int, n_bytes: int
    ) -> None:
        """See `graphml_gpu.driver.Driver`."""
        with self._reported(f"{source.label} cannot be copied to {target.label}"):
            self._cl.enqueue_copy(
                self._queue,
                _raw(target),
                _raw(source),
                byte_count=n_bytes,
                src_offset=source_offset,
                dst_offset=target_offset,
            )

    def clear(self, buffer: Buffer, offset: int, n_bytes: int) -> None:
        """See `graphml_gpu.driver.Driver`."""
        with self._reported(f"{buffer.label} cannot be cleared"):
            self._cl.enqueue_fill_buffer(self._queue, _raw(buffer), np.zeros(1, np.uint32), offset, n_bytes)

    def record(self, dispatches: Sequence[Bound], progress: Progress = no_progress) -> OpenclRecording:
        """See `graphml_gpu.driver.Driver`."""
        calls, kept = [], []
        for i, bound in enumerate(dispatches):
            progress("compile", i, len(dispatches))
            with self._reported(f"kernel {bound.kernel.title}: cannot be bound"):
                kernel = self._programs.kernel(bound.kernel)
                ranges: Sequence[tuple[Any, int, int]] = (*bound.buffers, bound.scalars)
                regions = [buffer.region(offset, n_bytes) for buffer, offset, n_bytes in ranges]
                kernel.set_args(*regions)
            calls.append((kernel, bound.kernel.group))
            kept.append(regions)
        progress("compile", len(dispatches), len(dispatches))
        return OpenclRecording(calls, kept)

    def submit(self, recording: Recording, groups: Sequence[Groups], timed: bool = False) -> None:
        """See `graphml_gpu.driver.Driver`."""
        if timed:
            self._submit_timed(recording, groups)
            return
        with self._reported("a step cannot be run"):
            self._enqueue(self._queue, recording, groups)
            self._queue.flush()

    def _submit_timed(self, recording: Recording, groups: Sequence[Groups]) -> None:
        properties = self._cl.command_queue_properties
        with self._reported("a step cannot be timed"):
            if self._timing is None:  # a queue of its own: profiling makes every call dearer
                self._timing = self._cl.CommandQueue(self._context, properties=properties.PROFILING_ENABLE)
            self._finish()
            self._events = self._enqueue(self._timing, recording, groups)
            self._timing.finish()

    def _enqueue(self, queue: Any, recording: Recording, groups: Sequence[Groups]) -> list[Any]:
        enqueue = self._cl.enqueue_nd_range_kernel
        return [
            enqueue(queue, kernel, at, size, None, None, True) if at[0] and at[1] and at[2] else None
            for (kernel, size), at in zip(_calls(recording), groups, strict=True)
        ]

    def times(self) -> list[tuple[int, int]]:
        """See `graphml_gpu.driver.Driver`."""
        found: list[tuple[int, int]] = []
        for event in self._events:
            end = found[-1][1] if found else 0
            found.append((event.profile.start, event.profile.end) if event is not None else (end, end))
        return found

    def wait(self) -> None:
        """See `graphml_gpu.driver.Driver`."""
        with self._reported("a step failed"):
            self._finish()

    def _finish(self) -> None:
        self._queue.finish()
        self._pending.clear()

    def close(self) -> None:
        """See `graphml_gpu.driver.Driver`."""
        self.wait()
        self._events = []


def _raw(buffer: Buffer) -> Any:
    return cast(OpenclBuffer, buffer).raw


def _calls(recording: Recording) -> Sequence[tuple[Any, Groups]]:
    return cast(OpenclRecording, recording).calls


def _bytes(data: Any) -> Bytes:
    """An array or bytes as bytes, without a copy."""
    if isinstance(data, np.ndarray):
        return data.reshape(-1).view(np.uint8)
    return np.frombuffer(data, np.uint8)
