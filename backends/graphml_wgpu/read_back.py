"""Reads a device's memory back by way of memory that can be mapped: at once, or after steps to come.

Knows buffers, ranges of bytes and the queue; nothing of dispatches.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from graphml_gpu.buffers import raw
from graphml_gpu.driver import Bytes, Range

from graphml_wgpu.encode import CommandBuffer, Queue
from graphml_wgpu.errors import reported

READBACK = 64 << 20
"""Most bytes that are read back at once."""


class ReadBack:
    """Staging memory of a device. name: of the device, for errors."""

    def __init__(self, device: Any, queue: Queue, name: str) -> None:
        self._device, self._queue, self._name = device, queue, name
        self._staging: Any = None
        self._spare: list[Any] = []

    def read(self, ranges: Sequence[Range]) -> list[Bytes]:
        """What ranges hold now, waited for."""
        arrays = [np.empty(n_bytes, np.uint8) for _, _, n_bytes in ranges]
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
                    arrays[i][begin : begin + n_bytes] = data[at : at + n_bytes]

            number = self._queue.submit(encode)
            self._queue.mapped(self._queue.map(staging, total, number), take)
            self._staging = staging
        return arrays

    def copied(self, ranges: Sequence[Range]) -> tuple[Any, CommandBuffer]:
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

    def after(self, ranges: Sequence[Range], staging: Any, submission: int) -> Callable[[], list[Bytes]]:
        """A function that waits for the submission of such commands, and returns what the ranges hold."""
        ends = list(itertools.accumulate(n_bytes for _, _, n_bytes in ranges))
        mapping = self._queue.map(staging, ends[-1], submission)

        def take(data: Bytes, arrays: list[Bytes]) -> None:
            own = data.copy()
            arrays += [own[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]

        def wait() -> list[Bytes]:
            arrays: list[Bytes] = []
            self._queue.mapped(mapping, lambda data: take(data, arrays))
            self._spare.append(staging)  # one that nobody waited for is not used again
            return arrays

        return wait

    def first_bytes(self, source: Any, n_bytes: int) -> Bytes:
        """The first bytes of one of wgpu-py's buffers, waited for; the caller's own."""
        staging, self._staging = self._staging_of(n_bytes), None
        number = self._queue.submit(
            lambda encoder: self._queue.copy(encoder, source._internal, 0, staging._internal, 0, n_bytes)
        )
        arrays: list[Bytes] = []
        self._queue.mapped(self._queue.map(staging, n_bytes, number), lambda data: arrays.append(data.copy()))
        self._staging = staging
        return arrays[0]

    def _staging_of(self, n_bytes: int) -> Any:
        """Memory of at least so many bytes that can be mapped for reading."""
        if self._staging is None or self._staging.size < n_bytes:
            if self._staging is not None:
                self._staging.destroy()
            self._staging = self._readable(n_bytes)
        return self._staging

    def _readable(self, n_bytes: int) -> Any:
        with reported(f"{self._name}: no memory to read {n_bytes} bytes back"):
            return self._device.create_buffer(
                label="read back", size=1 << max(12, (n_bytes - 1).bit_length()), usage="COPY_DST | MAP_READ"
            )


def fits(ranges: Sequence[Range]) -> bool:
    """Whether ranges are read back at once."""
    return 0 < sum(n_bytes for _, _, n_bytes in ranges) <= READBACK


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
