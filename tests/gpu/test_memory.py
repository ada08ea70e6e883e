"""Weights on their way to a device: in chunks, with a report of how far it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphml_gpu.memory import Memory, cut
from graphml_gpu.plain_driver import PlainDriver, small

from graphml.errors import BackendError
from graphml.ir.op import Array
from graphml.loading import discovery
from graphml.system.progress_labels import WORK


def held(memory: Memory, array: Array) -> tuple[list[bytes], list[tuple[int, int]]]:
    """What lies in the buffers of an array, and what was reported."""
    told: list[tuple[int, int]] = []

    def progress(what: str, done: int, total: int) -> None:
        assert what in WORK
        told.append((done, total))

    (found,) = memory.hold([("w", array)], progress)
    read = [memory.driver.read([(buffer, 0, buffer.n_bytes)])[0].tobytes() for buffer in found.buffers]
    keep.append(found)
    return read, told


keep: list[object] = []


def test_large_weights_go_in_chunks_and_tell_how_far_they_are() -> None:
    memory, array = Memory(PlainDriver()), np.arange(5 << 20, dtype=np.float32).reshape(-1, 1024)
    read, told = held(memory, array)
    assert read == [array.tobytes()]
    assert told == [(8 << 20, 20 << 20), (16 << 20, 20 << 20), (20 << 20, 20 << 20)]
    assert held(memory, array) == (read, [])  # it is there already


def test_odd_bytes_in_pieces() -> None:
    """Rows of 34 bytes: the last word of a shard is filled up with zeros, and so is the buffer."""
    memory = Memory(small(max_binding_bytes=200))
    array = np.random.default_rng(0).integers(0, 256, (13, 34), np.uint8)
    read, told = held(memory, array)
    assert told == []
    assert cut(13, 5) == [(0, 5), (5, 5), (10, 3)]
    for shard, (first, count) in zip(read, cut(13, 5), strict=True):
        rows = array[first : first + count].tobytes()
        assert shard == rows.ljust(len(shard), b"\0")
        assert len(shard) % 16 == 0


def test_who_runs_out_of_memory_is_told_what_to_do() -> None:
    memory = Memory(small(max_buffer_bytes=1 << 10, max_binding_bytes=1 << 20))
    memory.rows_per_shard = lambda array, name: array.shape[0]  # type: ignore[method-assign]
    with pytest.raises(BackendError, match=r"w: 4096 bytes.*gpu_layers .--gpu-layers. it is given fewer"):
        memory.hold([("w", np.zeros((4, 256), np.float32))], lambda *told: None)


class Large:
    """An OpenCL device with one thing changed."""

    def __init__(self, device: Any) -> None:
        self.device, self.max_mem_alloc_size = device, 35 << 30

    def __getattr__(self, name: str) -> Any:
        return getattr(self.device, name)


def test_no_binding_is_larger_than_kernels_can_count() -> None:
    """A byte's place has 32 bits: a weight of 5 GB lies in shards, whatever a device allows."""
    reason = discovery.backend("opencl").unavailable()
    if reason is not None:
        pytest.skip(reason)
    from graphml_opencl import devices

    facts = devices.facts(Large(devices.devices()[0]))
    assert facts.max_buffer_bytes == 35 << 30
    assert facts.max_binding_bytes < 1 << 32
    memory = Memory(small(max_buffer_bytes=facts.max_buffer_bytes, max_binding_bytes=facts.max_binding_bytes))
    experts = np.broadcast_to(np.zeros(1, np.uint8), (5, 1 << 30))
    assert memory.rows_per_shard(experts, "experts") == 3
