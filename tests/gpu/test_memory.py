"""Weights on their way to a device: in chunks, with a report of how far it is."""

from __future__ import annotations

import numpy as np
from graphml_gpu.memory import Memory, cut
from graphml_gpu.plain_driver import PlainDriver, small

from graphml.app.console import LABELS
from graphml.ir.op import Array


def held(memory: Memory, array: Array) -> tuple[list[bytes], list[tuple[int, int]]]:
    """What lies in the buffers of an array, and what was reported."""
    told: list[tuple[int, int]] = []

    def progress(what: str, done: int, total: int) -> None:
        assert what in LABELS
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
    """Rows of 34 bytes: the last word of a piece is filled up with zeros, and so is the buffer."""
    memory = Memory(small(max_binding_bytes=200))
    array = np.random.default_rng(0).integers(0, 256, (13, 34), np.uint8)
    read, told = held(memory, array)
    assert told == []
    assert cut(13, 5) == [(0, 5), (5, 5), (10, 3)]
    for piece, (first, count) in zip(read, cut(13, 5), strict=True):
        rows = array[first : first + count].tobytes()
        assert piece == rows.ljust(len(piece), b"\0")
        assert len(piece) % 16 == 0
