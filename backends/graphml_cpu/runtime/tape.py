"""The tape: a program as a flat list of kernel calls that every thread of a team walks by itself.

Knows addresses and flags; knows neither what the kernels do nor how threads are started.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphml.errors import BackendError
from graphml_cpu.runtime.shares import Shares

# Flags of a step.
BARRIER = 1  # all threads wait for each other after it
SERIAL = 2  # thread 0 alone runs it, as (0, 1)
REPLICATED = 4  # every thread runs all of it, as (0, 1), on a parameter block of its own
STEP_BYTES = 32
STRETCH_BYTES = 40
ROW_BYTES = 40


@dataclass(frozen=True)
class TapeStep:
    """One kernel call: the kernel's entry, its parameter blocks and how the threads share it.

    `blocks` are addresses: one block for all threads, or one per thread (where scratch memory differs).
    Without `barrier` the next step starts on a thread as soon as that thread has finished this one.

    parts: each thread's share is cut into so many, of which a thread that is done takes what another has not
    come to; 0: the shares are fixed, and all threads come to the step. owners: how many threads, from the
    first on, have a share; 0: all. since: the number of the first step that a thread must have run, with all
    that follow it, to run this one; None: any thread can.
    """

    entry: int
    blocks: tuple[int, ...]
    barrier: bool = True
    serial: bool = False
    replicated: bool = False
    parts: int = 0
    owners: int = 0
    since: int | None = None
    name: str = ""

    @property
    def flags(self) -> int:
        """The flags as the walker reads them."""
        return BARRIER * self.barrier | SERIAL * self.serial | REPLICATED * self.replicated

    @property
    def waits_for_all(self) -> bool:
        """Whether the barrier behind it is for all threads, not only for those that took part."""
        return not (self.replicated or self.parts)


def _stretches(
    steps: Sequence[TapeStep], n_threads: int, timed: bool
) -> list[tuple[int, int, int, int, int]]:
    """What lies between two barriers: (first step, end, whether all threads come, first stretch needed).

    And how many threads are wanted there, those of the lowest numbers.
    """
    ends = [end for end, step in enumerate(steps, 1) if step.barrier or end == len(steps)]
    stretches: list[tuple[int, int, int, int, int]] = []
    for number, end in enumerate(ends):
        first = stretches[-1][1] if stretches else 0
        here = steps[first:end]
        earliest = min(i if step.since is None else step.since for i, step in enumerate(here, first))
        since = min(bisect.bisect_right(ends, earliest), number)
        all_come = int(timed or any(step.waits_for_all for step in here))
        wanted = max((step.owners or n_threads if step.parts else 1) for step in here)
        stretches.append((first, end, all_come, since, n_threads if all_come else wanted))
    for number in reversed(range(len(stretches))):
        _, _, all_come, since, wanted = stretches[number]
        for between in range(since, number):
            first, end, come, needed, others = stretches[between]
            # Some thread must have been everywhere from there to here; and where all must come, all of them.
            stretches[between] = first, end, come | all_come, min(needed, since), max(others, wanted)
    return stretches


class Tape:
    """Steps laid out for `n_threads` walkers. The parameter blocks belong to the caller and must outlive it.

    `table` is what the walkers are given: per thread the address of its steps, their number, the address of
    its time stamps (0 if the tape is not timed), that of the stretches between barriers, and their number;
    `address` is where it lies.
    `anyone`: whether any of the threads can walk it without the others.
    """

    def __init__(self, steps: Sequence[TapeStep], n_threads: int, *, timed: bool = False) -> None:
        self.steps = tuple(steps)
        self.n_threads = n_threads
        self._rows: NDArray[np.int64] = np.zeros((n_threads, max(len(steps), 1), 4), np.int64)
        self._times: NDArray[np.int64] = np.zeros((n_threads, 2 * len(steps) + 1 if timed else 0), np.int64)
        self._stretches: NDArray[np.int64] = np.array(_stretches(steps, n_threads, timed), np.int64).reshape(
            -1, STRETCH_BYTES // 8
        )
        self.anyone = not self._stretches[:, 2].any()
        self.table: NDArray[np.int64] = np.zeros((n_threads, 5), np.int64)
        self.address: int = self.table.ctypes.data
        for index, step in enumerate(self.steps):
            if len(step.blocks) not in (1, n_threads) or (step.replicated and len(step.blocks) != n_threads):
                raise BackendError(
                    f"step {index} ({step.name or 'unnamed'}): {len(step.blocks)} parameter blocks for "
                    f"{n_threads} threads"
                )
            shares = Shares(step.owners or n_threads, step.parts).packed
            for thread in range(n_threads):
                block = step.blocks[thread % len(step.blocks)]
                self._rows[thread, index] = step.entry, block, step.flags, shares
        for thread in range(n_threads):
            times = self._times[thread].ctypes.data if timed else 0
            own, between = self._rows[thread].ctypes.data, self._stretches.ctypes.data
            self.table[thread] = own, len(self.steps), times, between, len(self._stretches)

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
