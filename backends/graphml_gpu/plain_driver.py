"""A driver without a device: kernels run in Python on NumPy arrays, an invocation at a time.

Slow, for tests and for debugging a kernel within its graph: it finds reads out of bounds and races. Knows
nothing of graphs.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from graphml.backend import Progress, no_progress
from graphml.errors import BackendError
from graphml_gpu.driver import Bound, Buffer, Bytes, Facts, Groups, Range, overlapping
from graphml_gpu.language import NEIGHBOURS, Lanes
from graphml_gpu.limits import exceeds, too_many_groups

FACTS = Facts(
    name="Python",
    vendor="NumPy",
    driver=np.__version__,
    backend="wgpu",
    kind="cpu",
    memory_bytes=None,
    max_buffer_bytes=1 << 31,
    max_binding_bytes=1 << 27,
    max_bindings=8,
    max_group=256,
    max_group_sizes=(256, 256, 64),
    max_groups=65535,
    shared_bytes=16384,
    offset_alignment=256,
    has_timestamps=True,
    unified_memory=True,
)
"""What WebGPU guarantees."""


class PlainBuffer:
    """See `graphml_gpu.driver.Buffer`."""

    def __init__(self, n_bytes: int, label: str) -> None:
        self.n_bytes, self.label = n_bytes, label
        self.data = np.zeros(n_bytes, np.uint8)

    def release(self) -> None:
        """Give the memory back."""
        self.data = np.zeros(0, np.uint8)


class PlainDriver:
    """See `graphml_gpu.driver.Driver`. lanes, nan_holds: see `emulator.run`.

    `written`, `submitted`, `read_back`: how often each was called.
    """

    def __init__(
        self, facts: Facts = FACTS, lanes: Lanes = NEIGHBOURS, nan_holds: bool | None = None
    ) -> None:
        self.facts, self._lanes, self._nan_holds = facts, lanes, nan_holds
        self.closed = False
        self.written = self.submitted = self.read_back = 0
        self._times: list[tuple[int, int]] = []

    @property
    def allocated_bytes(self) -> int:
        """Not counted: 0."""
        return 0

    def buffer(self, n_bytes: int, label: str) -> Buffer:
        """See `Driver`."""
        if n_bytes > self.facts.max_buffer_bytes:
            raise BackendError(f"{label}: {n_bytes} bytes; a buffer holds {self.facts.max_buffer_bytes}")
        return PlainBuffer(n_bytes, label)

    def write(self, buffer: Buffer, offset: int, data: Any) -> None:
        """See `Driver`."""
        raw = np.frombuffer(data, np.uint8)
        _part(buffer, offset, raw.size)[...] = raw
        self.written += 1

    def read(self, ranges: Sequence[Range]) -> list[Bytes]:
        """See `Driver`."""
        self.read_back += 1
        return [_part(*where).copy() for where in ranges]

    def later(self, ranges: Sequence[Range]) -> Callable[[], list[Bytes]]:
        """See `Driver`: nothing is ever under way."""
        arrays = self.read(ranges)
        return lambda: arrays

    def copy(
        self, source: Buffer, source_offset: int, target: Buffer, target_offset: int, n_bytes: int
    ) -> None:
        """See `Driver`."""
        _part(target, target_offset, n_bytes)[...] = _part(source, source_offset, n_bytes)

    def clear(self, buffer: Buffer, offset: int, n_bytes: int) -> None:
        """See `Driver`."""
        _part(buffer, offset, n_bytes)[...] = 0

    def record(self, dispatches: Sequence[Bound], progress: Progress = no_progress) -> Sequence[Bound]:
        """See `Driver`."""
        for bound in dispatches:
            over = exceeds(bound.kernel, self.facts)
            if over is not None:
                raise BackendError(over)
            for _, offset, size in (*bound.buffers, bound.scalars):
                if offset % self.facts.offset_alignment or size % 4 or size > self.facts.max_binding_bytes:
                    raise BackendError(f"{bound.kernel.name}: a range at {offset} of {size} bytes")
        return tuple(dispatches)

    def submit(
        self,
        recording: Any,
        groups: Sequence[Groups],
        timed: bool = False,
        copies: Sequence[tuple[Range, Range]] = (),
        reads: Sequence[Range] = (),
    ) -> Callable[[], list[Bytes]]:
        """See `Driver`."""
        for source, target in copies:
            _part(*target)[...] = _part(*source)
        self.submitted += 1
        self._times = []
        for bound, sizes in zip(recording, groups, strict=True):
            begin = time.perf_counter_ns()
            over = too_many_groups(bound.kernel, sizes, self.facts)
            if over is not None:
                raise BackendError(over)
            if all(sizes):
                self._check(bound)
                self._run(bound, sizes)
            self._times.append((begin, time.perf_counter_ns()))
        return self.later(reads) if reads else list[Bytes]

    def _check(self, bound: Bound) -> None:
        both = None if self.facts.overlaps else overlapping(bound)
        if both is not None:
            raise BackendError(
                f"kernel {bound.kernel.name}: its bindings {' and '.join(both)} overlap, and one is written"
            )

    def _run(self, bound: Bound, groups: Groups) -> None:
        kernel = bound.kernel
        words = _part(*bound.scalars).view(np.uint32)
        scalars = {
            scalar.name: float(word.view(np.float32)) if scalar.kind == "f32" else _whole(word, scalar.kind)
            for scalar, word in zip(kernel.scalars, words, strict=False)
        }
        kernel.run_python(
            {buffer.name: _part(*where) for buffer, where in zip(kernel.buffers, bound.buffers, strict=True)},
            scalars,
            groups,
            self._lanes,
            self._nan_holds,
        )

    def times(self) -> list[tuple[int, int]]:
        """See `Driver`."""
        return self._times

    def wait(self) -> None:
        """See `Driver`: nothing is ever under way."""

    def close(self) -> None:
        """See `Driver`."""
        self.closed = True


def small(**limits: int) -> PlainDriver:
    """A driver with other limits than WebGPU's."""
    return PlainDriver(dataclasses.replace(FACTS, **limits))  # type: ignore[arg-type]


def _whole(word: np.uint32, kind: str) -> int:
    return int(word.view(np.int32)) if kind == "i32" else int(word)


def _part(buffer: Buffer, offset: int, n_bytes: int) -> Bytes:
    data = cast(PlainBuffer, buffer).data
    if not 0 <= offset <= offset + n_bytes <= data.size:
        raise BackendError(f"{buffer.label}: {n_bytes} bytes at {offset}; it has {data.size}")
    return data[offset : offset + n_bytes]
