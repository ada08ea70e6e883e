"""How fast a device copies its memory: the bound of what reads weights. Knows drivers; nothing of models."""

from __future__ import annotations

import statistics
import time

from graphml.errors import BackendError
from graphml_gpu.driver import Driver

COPIED = 256 << 20
COPIES = 4
ROUNDS = 3


def copy_bandwidth(driver: Driver, copies: int = COPIES, rounds: int = ROUNDS) -> float:
    """Bytes a second that a copy on the device reads and writes: the median of some rounds.

    0 where there is no room for two buffers. Waits for all that was submitted before.
    """
    size = min(COPIED, driver.facts.max_buffer_bytes // 4) // 4096 * 4096
    buffers, rates = [], []
    try:
        buffers = [driver.buffer(size, "source")]
        buffers.append(driver.buffer(size, "target"))
        for _ in range(rounds + 1):  # of which the first touches the memory
            driver.wait()
            begin = time.perf_counter()
            for _ in range(copies):
                driver.copy(buffers[0], 0, buffers[1], 0, size)
            driver.wait()
            rates.append(copies * 2 * size / (time.perf_counter() - begin))
    except BackendError:
        return 0.0
    finally:
        for buffer in buffers:
            buffer.release()
    return statistics.median(rates[1:])
