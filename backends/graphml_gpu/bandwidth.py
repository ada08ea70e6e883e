"""How fast a device reads its memory: the bound of what reads weights. Knows drivers; nothing of models."""

from __future__ import annotations

import statistics
import time

from graphml.errors import BackendError
from graphml_gpu.driver import Bound, Buffer, DispatchRecording, Driver
from graphml_gpu.kernels.read_memory import read_memory

MOST = 1 << 30
"""Bytes that are read: far more than caches hold. Where there is no room, or on a processor, it is less."""
_ON_PROCESSORS = 128 << 20
_WORKGROUPS = 2048
_LOADS = 4
_ROUND_S = 0.02  # long against what a submit and waiting for it take
ROUNDS = 3


def read_bandwidth(driver: Driver, rounds: int = ROUNDS) -> float:
    """Bytes a second that a kernel reads from one buffer: the median of some rounds.

    0 where there is no room for such a buffer. Waits for all that was submitted before.
    """
    facts = driver.facts
    group = min(256, facts.max_group)
    once = _WORKGROUPS * group * _LOADS * 16
    most = min(
        _ON_PROCESSORS if facts.kind == "cpu" else MOST, facts.max_binding_bytes, facts.max_buffer_bytes
    )
    buffers: list[Buffer] = []
    try:
        data, n_rounds = _largest(driver, most, once)
        buffers.append(data)
        recording = _reading(driver, data, n_rounds, group, buffers)
        grids = [(_WORKGROUPS, 1, 1)]
        _seconds(driver, recording, grids, 1)  # touches the memory
        times = max(1, round(_ROUND_S / _seconds(driver, recording, grids, 1)))
        taken = [_seconds(driver, recording, grids, times) / times for _ in range(rounds)]
        return n_rounds * once / statistics.median(taken)
    except BackendError:
        return 0.0
    finally:
        for buffer in buffers:
            buffer.release()


def _largest(driver: Driver, most: int, once: int) -> tuple[Buffer, int]:
    """A buffer of as many times `once` bytes as there is room for; that many."""
    n_rounds = max(1, most // once)
    while True:
        try:
            return driver.buffer(n_rounds * once, "memory to read"), n_rounds
        except BackendError:
            if n_rounds == 1:
                raise
            n_rounds = max(1, n_rounds // 4)


def _reading(
    driver: Driver, data: Buffer, n_rounds: int, group: int, buffers: list[Buffer]
) -> DispatchRecording:
    n = _WORKGROUPS * group
    kernel = read_memory.specialise(
        driver.facts.features(), GROUP=group, N_GROUPS=_WORKGROUPS, N_LOADS=_LOADS
    )
    buffers.append(out := driver.buffer(4 * n, "sums"))
    buffers.append(words := driver.buffer(16, "numbers"))
    driver.write(words, 0, kernel.words({"rounds": n_rounds}))
    ranges = (data, 0, data.n_bytes), (out, 0, out.n_bytes)
    return driver.record([Bound(kernel, ranges, (words, 0, 16))])


def _seconds(
    driver: Driver, recording: DispatchRecording, grids: list[tuple[int, int, int]], times: int
) -> float:
    """Seconds of so many submits, from first to last."""
    driver.wait()
    begin = time.perf_counter()
    for _ in range(times):
        driver.submit(recording, grids)
    driver.wait()
    return time.perf_counter() - begin
