"""The buffers of a device, as both drivers keep them: how much is allocated, and what was given back.

Knows no library: `raw` is whatever the driver allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np

from graphml.errors import BackendError
from graphml_gpu.driver import Bound, Buffer, Bytes, Facts


class DeviceBuffer:
    """See `graphml_gpu.driver.Buffer`. raw: the library's own; size: its bytes, whole words."""

    def __init__(self, raw: Any, size: int, n_bytes: int, label: str, given_back: Callable[[], None]) -> None:
        self.raw, self.size, self.n_bytes, self.label = raw, size, n_bytes, label
        self.released = False
        self._given_back = given_back

    def release(self) -> None:
        """See `graphml_gpu.driver.Buffer`."""
        if not self.released:
            self.released = True
            self._given_back()


class Buffers:
    """What a driver has allocated. n_bytes: of all; n_released: how many were given back so far."""

    def __init__(self) -> None:
        self.n_bytes = self.n_released = 0

    def allocate(
        self,
        facts: Facts,
        n_bytes: int,
        label: str,
        make: Callable[[int, str], Any],
        destroy: Callable[[Any], None],
    ) -> DeviceBuffer:
        """A buffer of the library's; `BackendError` if it is more than the device allows or has.

        make: the size in bytes and what to call it in an error -> the library's buffer.
        """
        size = max(4, -(-n_bytes // 4) * 4)
        what = f"{label}: {n_bytes} bytes cannot be allocated ({self.n_bytes} are)"
        if size > facts.max_buffer_bytes:
            raise BackendError(f"{facts.name}: {what}: a buffer holds at most {facts.max_buffer_bytes}")
        if facts.memory_bytes is not None and self.n_bytes + size > facts.memory_bytes:
            raise BackendError(f"{facts.name}: {what}: the device has {facts.memory_bytes}")
        try:
            raw = make(size, what)
        except MemoryError as error:
            raise BackendError(f"{facts.name}: {what}: not enough memory: {error}") from None
        self.n_bytes += size

        def given_back() -> None:
            self.n_bytes -= size
            self.n_released += 1
            destroy(raw)

        return DeviceBuffer(raw, size, n_bytes, label, given_back)


class Used:
    """The buffers of a recording, which must be there when it is submitted."""

    def __init__(self, dispatches: Iterable[Bound]) -> None:
        ranges = [where for bound in dispatches for where in (*bound.buffers, bound.scalars)]
        self._buffers = tuple(dict.fromkeys(cast(DeviceBuffer, buffer) for buffer, _, _ in ranges))
        self._checked = 0

    def check(self, n_released: int) -> None:
        """`BackendError` if one is gone; n_released: of the driver, so that looking again costs nothing."""
        if n_released != self._checked:
            gone = [buffer.label for buffer in self._buffers if buffer.released]
            if gone:
                raise BackendError(f"a recording cannot be submitted: {', '.join(gone)} was released")
            self._checked = n_released


def raw(buffer: Buffer) -> Any:
    """The library's buffer; `BackendError` if it was released."""
    held = cast(DeviceBuffer, buffer)
    if held.released:
        raise BackendError(f"{held.label}: was released")
    return held.raw


def as_bytes(data: Any) -> Bytes:
    """An array (C-contiguous) or bytes as bytes, without a copy."""
    if isinstance(data, np.ndarray):
        return data.reshape(-1).view(np.uint8)
    return np.frombuffer(data, np.uint8)
