"""A device driven by OpenCL: memory, uploads and read-back, recordings and their timestamps.

Knows nothing of graphs. A recording holds a kernel object per dispatch, whose arguments are set once; a step
is a row of `clEnqueueNDRangeKernel` (`enqueue_loop`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
from graphml_gpu.buffers import Buffers, Used, as_bytes, raw
from graphml_gpu.driver import Bound, Buffer, Bytes, DispatchRecording, Facts, Groups, Range

from graphml.backend import Progress, no_progress
from graphml.errors import BackendError
from graphml_opencl import devices
from graphml_opencl.enqueue_loop import Words, launch
from graphml_opencl.programs import Programs

UPLOAD = 32 << 20
"""Bytes that are written at once."""
COPIED = 1 << 20
"""Writes up to so many bytes are copied first, so that they need not wait for what runs before them."""
PENDING = 256
"""Writes that may be on their way."""


class OpenclRecording:
    """Dispatches: a kernel object each, with the size of its workgroup. kept: what must live as long."""

    def __init__(self, calls: Sequence[tuple[Any, Groups]], used: Used, kept: Sequence[Any]) -> None:
        self.calls, self.used = calls, used
        self._kept = kept
        self._kernels = np.array([kernel.int_ptr for kernel, _ in calls], np.uint64)
        self._groups = np.array([group for _, group in calls], np.uint64).reshape(-1, 3)
        self._sizes: tuple[tuple[Groups, ...], Words] | None = None

    def __len__(self) -> int:
        return len(self.calls)

    def launch(self, queue: Any, groups: Sequence[Groups]) -> tuple[int, int]:
        """Enqueue all of it; see `enqueue_loop.launch`."""
        key = tuple(groups)
        if len(key) != len(self.calls):
            raise BackendError(f"wanted a grid for each of {len(self.calls)} dispatches; got {len(key)}")
        if self._sizes is None or self._sizes[0] != key:
            self._sizes = key, np.array(key, np.uint64).reshape(-1, 3) * self._groups
        return launch(queue.int_ptr, self._kernels, self._sizes[1], self._groups)


class OpenclDriver:
    """See `graphml_gpu.driver.Driver`. buffers: what is allocated."""

    def __init__(self, device: Any = None) -> None:
        import pyopencl

        self._cl = pyopencl
        device = devices.devices()[devices.used()] if device is None else device
        self.facts: Facts = devices.facts(device)
        self.buffers = Buffers()
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

    def _said(self, error: int) -> str:
        return str(self._cl.status_code.to_string(error, "status %d"))

    @property
    def allocated_bytes(self) -> int:
        """See `graphml_gpu.driver.Driver`."""
        return self.buffers.n_bytes

    def buffer(self, n_bytes: int, label: str) -> Buffer:
        """See `graphml_gpu.driver.Driver`."""

        def make(size: int, what: str) -> Any:
            with self._reported(what):
                buffer = self._cl.Buffer(self._context, self._cl.mem_flags.READ_WRITE, size)
                # zeroed now: drivers that allocate late fail here, where it is clear for what
                self._cl.enqueue_fill_buffer(self._queue, buffer, np.zeros(1, np.uint32), 0, size)
                self._queue.finish()
                return buffer

        return self.buffers.allocate(self.facts, n_bytes, label, make, lambda buffer: buffer.release())

    def write(self, buffer: Buffer, offset: int, data: Any) -> None:
        """See `graphml_gpu.driver.Driver`."""
        source = as_bytes(data)
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
        return self._cl.enqueue_copy(self._queue, raw(buffer), data, dst_offset=offset, is_blocking=wait)

    def read(self, ranges: Sequence[Range]) -> list[Bytes]:
        """See `graphml_gpu.driver.Driver`."""
        arrays = [np.empty(n_bytes, np.uint8) for _, _, n_bytes in ranges]
        events = self._fetch(arrays, ranges)
        with self._reported("results cannot be read back"):
            self._finish()
            del events
        return arrays

    def later(self, ranges: Sequence[Range]) -> Callable[[], list[Bytes]]:
        """See `graphml_gpu.driver.Driver`."""
        arrays = [np.empty(n_bytes, np.uint8) for _, _, n_bytes in ranges]
        events = self._fetch(arrays, ranges)

        def wait() -> list[Bytes]:
            with self._reported("results cannot be read back"):
                while events:
                    events.pop().wait()
            return arrays

        return wait

    def _fetch(self, arrays: Sequence[Bytes], ranges: Sequence[Range]) -> list[Any]:
        """Have ranges copied to arrays; the events that tell when it is done keep the arrays."""
        with self._reported("results cannot be read back"):
            events = [
                self._cl.enqueue_copy(self._queue, target, raw(buffer), src_offset=offset, is_blocking=False)
                for target, (buffer, offset, n_bytes) in zip(arrays, ranges, strict=True)
                if n_bytes
            ]
            self._queue.flush()
            return events

    def copy(
        self, source: Buffer, source_offset: int, target: Buffer, target_offset: int, n_bytes: int
    ) -> None:
        """See `graphml_gpu.driver.Driver`."""
        with self._reported(f"{source.label} cannot be copied to {target.label}"):
            self._cl.enqueue_copy(
                self._queue,
                raw(target),
                raw(source),
                byte_count=n_bytes,
                src_offset=source_offset,
                dst_offset=target_offset,
            )

    def clear(self, buffer: Buffer, offset: int, n_bytes: int) -> None:
        """See `graphml_gpu.driver.Driver`."""
        with self._reported(f"{buffer.label} cannot be cleared"):
            self._cl.enqueue_fill_buffer(self._queue, raw(buffer), np.zeros(1, np.uint32), offset, n_bytes)

    def record(self, dispatches: Sequence[Bound], progress: Progress = no_progress) -> OpenclRecording:
        """See `graphml_gpu.driver.Driver`."""
        calls: list[tuple[Any, Groups]] = []
        regions: dict[tuple[int, int, int], Any] = {}
        for i, bound in enumerate(dispatches):
            progress("record", i, len(dispatches))
            self._programs.make(dispatch.kernel for dispatch in dispatches[i:])
            with self._reported(f"kernel {bound.kernel.title}: cannot be bound"):
                kernel = self._programs.kernel(bound.kernel)
                kernel.set_args(*(_region(where, regions) for where in (*bound.buffers, bound.scalars)))
            calls.append((kernel, bound.kernel.group))
        progress("record", len(dispatches), len(dispatches))
        return OpenclRecording(calls, Used(dispatches), tuple(regions.values()))

    def submit(
        self,
        recording: DispatchRecording,
        groups: Sequence[Groups],
        timed: bool = False,
        copies: Sequence[tuple[Range, Range]] = (),
        reads: Sequence[Range] = (),
    ) -> Callable[[], list[Bytes]]:
        """See `graphml_gpu.driver.Driver`."""
        cast(OpenclRecording, recording).used.check(self.buffers.n_released)
        for (source, begin, n_bytes), (target, at, _) in copies:
            self.copy(source, begin, target, at, n_bytes)
        if timed:
            self._submit_timed(recording, groups)
            return self.later(reads)
        done, error = cast(OpenclRecording, recording).launch(self._queue, groups)
        if error:
            title = _calls(recording)[done][0].function_name
            raise BackendError(f"{self.facts.name}: kernel {title}: cannot be run: {self._said(error)}")
        with self._reported("a step cannot be run"):
            self._queue.flush()
        return self.later(reads)

    def _submit_timed(self, recording: DispatchRecording, groups: Sequence[Groups]) -> None:
        properties = self._cl.command_queue_properties
        with self._reported("a step cannot be timed"):
            if self._timing is None:  # a queue of its own: profiling makes every call dearer
                self._timing = self._cl.CommandQueue(self._context, properties=properties.PROFILING_ENABLE)
            self._finish()
            enqueue = self._cl.enqueue_nd_range_kernel
            self._events = [
                enqueue(self._timing, kernel, at, size, None, None, True) if all(at) else None
                for (kernel, size), at in zip(_calls(recording), groups, strict=True)
            ]
            self._timing.finish()

    def times(self) -> list[tuple[int, int]]:
        """See `graphml_gpu.driver.Driver`."""
        spans: list[tuple[int, int]] = []
        for event in self._events:
            end = spans[-1][1] if spans else 0
            spans.append((event.profile.start, event.profile.end) if event is not None else (end, end))
        return spans

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


def _calls(recording: DispatchRecording) -> Sequence[tuple[Any, Groups]]:
    return cast(OpenclRecording, recording).calls


def _region(where: Range, regions: dict[tuple[int, int, int], Any]) -> Any:
    """A range as a buffer of its own; the same range of several dispatches is the same one."""
    buffer, offset, n_bytes = where
    whole = raw(buffer)
    if (offset, n_bytes) == (0, whole.size):
        return whole
    key = id(buffer), offset, n_bytes
    if key not in regions:
        regions[key] = whole.get_sub_region(offset, n_bytes)
    return regions[key]
