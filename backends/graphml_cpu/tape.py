"""The tape: a program as a flat list of kernel calls that every thread of a team walks by itself.

Knows addresses and flags; knows neither what the kernels do nor how threads are started.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphml.errors import BackendError

# Flags of a step.
BARRIER = 1  # all threads wait for each other after it
SERIAL = 2  # thread 0 alone runs it, as (0, 1)
REPLICATED = 4  # every thread runs all of it, as (0, 1), on a parameter block of its own
STEP_BYTES = 24


@dataclass(frozen=True)
class Step:
    """One kernel call: the kernel's entry, its parameter blocks and how the threads share it.

    `blocks` are addresses: one block for all threads, or one per thread (where scratch memory differs).
    Without `barrier` the next step starts on a thread as soon as that thread has finished this one.
    """

    entry: int
    blocks: tuple[int, ...]
    barrier: bool = True
    serial: bool = False
    replicated: bool = False
    name: str = ""

    @property
    def flags(self) -> int:
        """The flags as the walker reads them."""
        return BARRIER * self.barrier | SERIAL * self.serial | REPLICATED * self.replicated


class Tape:
    """Steps laid out for `n_threads` walkers. The parameter blocks belong to the caller and must outlive it.

    `table` is what the walkers are given: per thread the address of its steps, their number, and the address
    of its time stamps (0 if the tape is not timed).
    """

    def __init__(self, steps: Sequence[Step], n_threads: int, *, timed: bool = False) -> None:
        self.steps = tuple(steps)
        self.n_threads = n_threads
        self._rows: NDArray[np.int64] = np.zeros((n_threads, max(len(steps), 1), 3), np.int64)
        self._times: NDArray[np.int64] = np.zeros((n_threads, 2 * len(steps) + 1 if timed else 0), np.int64)
        self.table: NDArray[np.int64] = np.zeros((n_threads, 3), np.int64)
        for index, step in enumerate(self.steps):
            if len(step.blocks) not in (1, n_threads) or (step.replicated and len(step.blocks) != n_threads):
                raise BackendError(
                    f"step {index} ({step.name or 'unnamed'}): {len(step.blocks)} parameter blocks for "
                    f"{n_threads} threads"
                )
            for thread in range(n_threads):
                self._rows[thread, index] = step.entry, step.blocks[thread % len(step.blocks)], step.flags
        for thread in range(n_threads):
            times = self._times[thread].ctypes.data if timed else 0
            self.table[thread] = self._rows[thread].ctypes.data, len(self.steps), times

    def counters(self) -> NDArray[np.int64]:
        """[threads, 2 * steps + 1]: the counter at the beginning and after each step's work and wait.

        Of the last run, as `ticks`.
        """
        return self._times

    def ticks(self) -> NDArray[np.int64]:
        """[threads, steps, 2]: counter ticks spent in each step and in waiting after it, in the last run.

        Only for a timed tape that ran to its end; ticks are the processor's own unit.
        """
        return np.diff(self._times, axis=1).reshape(self.n_threads, -1, 2)
