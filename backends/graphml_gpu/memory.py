"""Memory of a device: buffers that go when their owners do, and weights that lie there once for all programs.

Knows arrays and bytes; nothing of graphs.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from graphml.backend import Progress
from graphml.errors import BackendError
from graphml.ir.op import Array
from graphml_gpu.driver import Buffer, Driver
from graphml_gpu.subgroups import checked

_CHUNK = 8 << 20  # bytes written at a time, so that a bar moves and no library stages a whole model
_PENDING = 64 << 20  # bytes after which the device is waited for, which gives the staging memory back


class Memory:
    """A driver with buffers that belong to objects. One user at a time: who uses the driver holds `lock`.

    features: what kernels may use of the device.
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.features = checked(driver)
        self.lock = threading.RLock()
        self.closed = False
        self._dropped: list[Buffer] = []
        self._held: weakref.WeakValueDictionary[tuple[int, int, int], HeldArray] = (
            weakref.WeakValueDictionary()
        )

    def buffer(self, owner: object, n_bytes: int, label: str) -> Buffer:
        """Zeroed memory of at least n_bytes, a multiple of 16, given back when `owner` is gone."""
        self.tidy()
        buffer = self.driver.buffer(max(-(-n_bytes // 16), 1) * 16, label)
        # The collector may run in any thread and at any time, so buffers are given back at the next use.
        weakref.finalize(owner, self._dropped.append, buffer).atexit = False
        return buffer

    def tidy(self) -> None:
        """Give back the buffers whose owners are gone."""
        while self._dropped and not self.closed:
            self._dropped.pop().release()

    def write(self, buffer: Buffer, offset: int, data: Array) -> None:
        """Write bytes (uint8 [n], contiguous); the last word is filled up with zeros."""
        whole = data.size & ~3
        if whole:
            self.driver.write(buffer, offset, data[:whole])
        if whole < data.size:
            tail = np.zeros(4, np.uint8)
            tail[: data.size - whole] = data[whole:]
            self.driver.write(buffer, offset + whole, tail)

    def rows_per_shard(self, array: Array, name: str) -> int:
        """How many entries of the first dimension one buffer can hold.

        `BackendError` where it is not even one.
        """
        facts = self.driver.facts
        limit = min(facts.max_binding_bytes, facts.max_buffer_bytes) & ~15
        if array.nbytes <= limit or not array.shape:
            return int(array.shape[0]) if array.shape else 1
        entry = array.nbytes // array.shape[0]
        if entry > limit:
            raise BackendError(
                f"{name}: one of {array.shape[0]} parts is {entry} bytes, and one binding of {facts.name}"
                f" holds {limit}"
            )
        return int(limit // entry)

    def hold(self, arrays: Iterable[tuple[str, Array]], progress: Progress) -> list[HeldArray]:
        """Weights on the device, uploaded unless they are there already. Who wants them there keeps these."""
        held_arrays = [self._find(name, array) for name, array in arrays]
        missing = [held for held in dict.fromkeys(held_arrays) if not held.buffers]
        total, done, pending = sum(held.array.nbytes for held in missing), 0, 0
        for held in missing:
            raw = held.array.reshape(-1).view(np.uint8)
            size = held.n_rows * (held.array.nbytes // max(held.array.shape[0] if held.array.shape else 1, 1))
            buffers = []  # held only when all of it is there: a device may run out of memory in between
            for first in range(0, max(raw.size, 1), max(size, 1)):
                shard = raw[first : first + size]
                buffer = self._for_weights(held, shard.size)
                for at in range(0, shard.size, _CHUNK):
                    chunk = shard[at : at + _CHUNK]
                    self.write(buffer, at, chunk)
                    done, pending = done + chunk.size, pending + chunk.size
                    if pending >= _PENDING:
                        self.driver.wait()
                        pending = 0
                    if total > _CHUNK:
                        progress("upload", done, total)
                buffers.append(buffer)
            held.buffers += buffers
        return held_arrays

    def _for_weights(self, held: HeldArray, n_bytes: int) -> Buffer:
        try:
            return self.buffer(held, n_bytes, held.name)
        except BackendError as error:
            raise BackendError(f"{error}; with gpu_layers (--gpu-layers) it is given fewer layers") from error

    def _find(self, name: str, array: Array) -> HeldArray:
        array = np.ascontiguousarray(array)
        n_rows = self.rows_per_shard(array, name)
        key = array.ctypes.data, array.nbytes, n_rows
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = HeldArray(name, array, n_rows, [])
        return held

    def close(self) -> None:
        """Close the driver, which gives every buffer back."""
        with self.lock:
            if not self.closed:
                self.closed = True
                self._dropped.clear()
                self.driver.close()


@dataclass(eq=False)
class HeldArray:
    """An array on the device: `n_rows` entries of its first dimension in each of its buffers.

    It keeps the array, whose address is what it is found by.
    """

    name: str
    array: Array
    n_rows: int
    buffers: list[Buffer]

    def rows(self, first: int, count: int) -> Buffer:
        """The buffer of a shard, which must be one of those that it was cut into."""
        if not self.array.shape or (first == 0 and count == self.array.shape[0] and len(self.buffers) == 1):
            return self.buffers[0]
        shards = cut(self.array.shape[0], self.n_rows)
        if (first, count) not in shards:
            raise BackendError(
                f"{self.name}: it is cut into {len(shards)} shards of up to {self.n_rows} rows;"
                f" wanted rows {first} to {first + count} in one"
            )
        return self.buffers[shards.index((first, count))]


def cut(total: int, size: int) -> Sequence[tuple[int, int]]:
    """`total` things cut into (first, count) of at most `size`."""
    return [(first, min(size, total - first)) for first in range(0, total, size)]
