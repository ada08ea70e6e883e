"""The calls of every step, made to wgpu-native directly; the rest of the package uses wgpu-py as it is meant.

wgpu-py's methods check and wrap each call, which costs about 3.3 us a dispatch (set_pipeline, set_bind_group,
dispatch_workgroups). So command buffers are made here from the handles of wgpu-py's objects, dispatches among
them by `dispatch_loop`, 0.3 us each. wgpu-native validates all of it either way; what it reports is raised
(`errors.captured`). Reading back is here too: wgpu-py waits for a mapping in a thread of its own, which takes
milliseconds at times; polling in the calling thread costs about 25 us.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from graphml_gpu.driver import Bytes

from graphml.errors import BackendError
from graphml_wgpu.dispatch_loop import DispatchLoop
from graphml_wgpu.errors import captured

Calls = np.ndarray[Any, np.dtype[np.uint64]]
"""[n, 2]: handles of pipelines and of the bind groups that they are run with, as numbers."""
Grids = np.ndarray[Any, np.dtype[np.uint32]]
"""[n, 3]: the workgroups of dispatches."""

_MAP_READ = 1
_SUBMITTED = 2  # command buffers at once, at most


class CommandBuffer:
    """A command buffer, to be submitted once; released when nobody has it any more."""

    def __init__(self, handle: Any, release: Callable[[Any], None]) -> None:
        self.handle, self._release = handle, release

    def release(self) -> None:
        """Give it back."""
        handle, self.handle = self.handle, None
        if handle is not None:
            self._release(handle)

    __del__ = release


@dataclass(eq=False)
class Mapping:
    """A wgpu-py buffer that is about to be mapped: how many of its bytes, after which submission.

    status: what the library said of it, None until then. handle: by which it is known there.
    """

    buffer: Any
    n_bytes: int
    submission: int
    status: int | None = None
    handle: Any = None


class Queue:
    """A device's queue. Handles are those of wgpu-py's objects, which must outlive the calls.

    `encode`, and what is encoded within, may be called from any thread; the rest from one at a time.
    """

    def __init__(self, device: Any) -> None:
        from wgpu.backends.wgpu_native import _api, _ffi

        self._lib, self._ffi, self._errors = _ffi.lib, _ffi.ffi, _api.error_handler
        self._device, self._queue = device, device.queue
        new = self._ffi.new
        self._encoder = new("WGPUCommandEncoderDescriptor *")
        self._pass = new("WGPUComputePassDescriptor *")
        self._buffer = new("WGPUCommandBufferDescriptor *")
        self._timed_pass = new("WGPUComputePassDescriptor *")
        self._commands = new(f"WGPUCommandBuffer[{_SUBMITTED}]")
        self._timestamps = new("WGPUPassTimestampWrites *")
        self._submission = new("WGPUSubmissionIndex *")
        self._dispatches = DispatchLoop(self._lib, self._ffi)
        self._under_way: set[Mapping] = set()
        self._interrupt: BaseException | None = None
        signature = "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)"
        self._on_mapped = self._ffi.callback(signature, onerror=self._interrupted)(
            lambda status, message, handle, _: self._is_mapped(self._ffi.from_handle(handle), status)
        )
        self._mapping = new("WGPUBufferMapCallbackInfo *")
        self._mapping.mode = self._lib.WGPUCallbackMode_AllowSpontaneous
        self._mapping.callback = self._on_mapped

    def submit(self, encode: Callable[[Any], None]) -> int:
        """Submit what `encode` puts into a command encoder; the submission's number, for `mapped`."""
        return self.hand_over(self.encode(encode))

    def encode(self, encode: Callable[[Any], None]) -> CommandBuffer:
        """What `encode` puts into a command encoder; from any thread."""
        lib = self._lib
        with captured(self._errors):
            encoder = lib.wgpuDeviceCreateCommandEncoder(self._device._internal, self._encoder)
            try:
                encode(encoder)
                handle = lib.wgpuCommandEncoderFinish(encoder, self._buffer)
                return CommandBuffer(handle, lib.wgpuCommandBufferRelease)
            finally:
                lib.wgpuCommandEncoderRelease(encoder)

    def hand_over(self, *commands: CommandBuffer) -> int:
        """Submit command buffers of which none has an error, or the process ends; the submission's number."""
        with captured(self._errors):
            for i, command in enumerate(commands):
                self._commands[i] = command.handle
            number = self._lib.wgpuQueueSubmitForIndex(self._queue._internal, len(commands), self._commands)
            for command in commands:
                command.release()
        return int(number)

    def check(self) -> None:
        """`BackendError` where the device is known to be lost, or submitting would end the process."""
        self.encode(lambda encoder: None)

    def compute(self, encoder: Any, calls: Calls, grids: Grids, begin: Any = None) -> None:
        """Encode dispatches in one pass; those without groups are left out."""
        if len(calls) != len(grids):
            raise BackendError(f"wanted a grid for each of {len(calls)} dispatches; got {len(grids)}")
        lib, address = self._lib, self._ffi.from_buffer
        compute = lib.wgpuCommandEncoderBeginComputePass(encoder, begin or self._pass)
        self._dispatches(compute, address(calls), address(grids), len(calls))
        lib.wgpuComputePassEncoderEnd(compute)
        lib.wgpuComputePassEncoderRelease(compute)

    def compute_timed(self, encoder: Any, call: Calls, grid: Grids, queries: Any, first: int) -> None:
        """Encode a dispatch in a pass of its own; its begin and end are queries `first` and `first + 1`."""
        times = self._timestamps
        times.querySet, times.beginningOfPassWriteIndex, times.endOfPassWriteIndex = queries, first, first + 1
        self._timed_pass.timestampWrites = times
        self.compute(encoder, call, grid, self._timed_pass)

    def resolve(self, encoder: Any, queries: Any, n: int, target: Any, offset: int) -> None:
        """Encode that n timestamps are written to a buffer, 8 bytes each."""
        self._lib.wgpuCommandEncoderResolveQuerySet(encoder, queries, 0, n, target, offset)

    def copy(self, encoder: Any, source: Any, begin: int, target: Any, offset: int, n_bytes: int) -> None:
        """Encode a copy between buffers."""
        self._lib.wgpuCommandEncoderCopyBufferToBuffer(encoder, source, begin, target, offset, n_bytes)

    def clear(self, encoder: Any, buffer: Any, offset: int, n_bytes: int) -> None:
        """Encode that bytes are set to zero."""
        self._lib.wgpuCommandEncoderClearBuffer(encoder, buffer, offset, n_bytes)

    def write(self, buffer: Any, offset: int, data: Bytes) -> None:
        """Have bytes written before what is submitted next; offset and size are multiples of 4."""
        with captured(self._errors):
            source = self._ffi.from_buffer(data)
            self._lib.wgpuQueueWriteBuffer(self._queue._internal, buffer, offset, source, len(data))

    def wait(self) -> None:
        """Wait for all that was submitted."""
        with captured(self._errors):
            self._lib.wgpuDevicePoll(self._device._internal, True, self._ffi.NULL)

    def map(self, buffer: Any, n_bytes: int, submission: int) -> Mapping:
        """Have the first bytes of a buffer mapped for reading, as a submission leaves them."""
        mapping = Mapping(buffer, n_bytes, submission)
        mapping.handle = self._ffi.new_handle(mapping)
        self._mapping.userdata1 = mapping.handle
        self._under_way.add(mapping)  # it, and the buffer, must live until the library has called back
        with captured(self._errors):
            self._lib.wgpuBufferMapAsync(buffer._internal, _MAP_READ, 0, n_bytes, self._mapping[0])
        return mapping

    def _is_mapped(self, mapping: Mapping, status: int) -> None:
        mapping.status = status
        self._under_way.discard(mapping)
        mapping.handle = None

    def _interrupted(self, kind: object, error: BaseException, trace: TracebackType) -> None:
        """Ctrl-C came within the callback, where it would be lost: it does its work and is raised later.

        The work may be done already: then the handle is dead, and to follow it would end the process.
        """
        frame_locals = trace.tb_frame.f_locals
        self._interrupt = error
        for mapping in [pending for pending in self._under_way if pending.handle == frame_locals["handle"]]:
            self._is_mapped(mapping, frame_locals["status"])

    def _raise_interrupt(self) -> None:
        error, self._interrupt = self._interrupt, None
        if error is not None:
            raise error

    def mapped(self, mapping: Mapping, take: Callable[[Bytes], None]) -> None:
        """Wait for the submission of a mapping, and let `take` copy its bytes."""
        lib = self._lib
        if mapping.status is None:
            self._submission[0] = mapping.submission
            with captured(self._errors):
                lib.wgpuDevicePoll(self._device._internal, True, self._submission)
        if mapping.status != lib.WGPUMapAsyncStatus_Success:
            raise BackendError(
                f"wgpu: results cannot be read back: status {mapping.status}; is the device lost?"
            )
        handle = mapping.buffer._internal
        try:
            address = lib.wgpuBufferGetConstMappedRange(handle, 0, mapping.n_bytes)
            take(np.frombuffer(self._ffi.buffer(address, mapping.n_bytes), np.uint8))
        finally:
            lib.wgpuBufferUnmap(handle)
        self._raise_interrupt()

    def period_ns(self) -> float:
        """Nanoseconds of a tick of timestamps."""
        return float(self._lib.wgpuQueueGetTimestampPeriod(self._queue._internal))
