"""Where threads must wait for each other: where a step touches memory that an earlier one touches too."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from graphml_cpu.lowering.step import Argument, KernelCall


@dataclass(frozen=True)
class MemoryRegion:
    """Memory that a step touches: `room` (arena or a state), from `start` to `end`.

    private: each thread touches a part of its own, the same one whenever start and end are the same.
    """

    room: str
    start: int
    end: int
    private: bool = False

    def meets(self, other: MemoryRegion) -> bool:
        """Whether one thread's access to this may touch what another thread accesses in the other."""
        if self.room != other.room or self.start >= other.end or other.start >= self.end:
            return False
        same = (self.start, self.end) == (other.start, other.end)
        return not (self.private and other.private and same)


Touched = tuple[list[MemoryRegion], list[MemoryRegion]]


class Regions(Protocol):
    """The memory region of an argument."""

    def region(self, argument: Argument) -> MemoryRegion | None:
        """None for numbers, weights and scratch of one thread, which never conflict."""


def touched_by(step: KernelCall, places: Regions) -> Touched:
    """What a step reads, and what it writes."""
    reads: list[MemoryRegion] = []
    writes: list[MemoryRegion] = []
    for name, argument in step.arguments.items():
        region = places.region(argument)
        if region is not None:
            (writes if name in step.writes else reads).append(region)
    through_tables = (places.region(node) for node in step.reads)
    reads += [region for region in through_tables if region is not None]
    return reads, writes


def barriers(touched: Sequence[Touched]) -> list[bool]:
    """For every step whether all threads wait after it.

    A step waits for those since the last barrier that wrote what it reads or writes, or read what it writes.
    """
    after = [False] * len(touched)
    reads: list[MemoryRegion] = []
    writes: list[MemoryRegion] = []
    for i, (mine_read, mine_written) in enumerate(touched):
        behind = any(r.meets(w) for w in writes for r in (*mine_read, *mine_written))
        ahead = any(w.meets(r) for r in reads for w in mine_written)
        if behind or ahead:
            after[i - 1] = True
            reads, writes = [], []
        reads += mine_read
        writes += mine_written
    if after:
        after[-1] = True
        _put_off(after, touched)
    return after


def _put_off(after: list[bool], touched: Sequence[Touched]) -> None:
    """Move barriers before steps at which each thread writes its own memory alone, where that needs none."""
    ends = [i for i, waits in enumerate(after) if waits]
    for barrier, end in itertools.pairwise(ends):
        place = barrier
        while place > 0 and not after[place - 1] and _is_own(touched[place]):
            reads, writes = touched[place]
            later = touched[barrier + 1 : end + 1]
            if any(w.meets(r) for _, theirs in later for w in theirs for r in (*reads, *writes)):
                break
            if any(w.meets(r) for theirs, _ in later for r in theirs for w in writes):
                break
            place -= 1
        after[barrier] = False
        after[place] = True


def _is_own(touched: Touched) -> bool:
    """Whether a step writes nothing but each thread's own memory."""
    return bool(touched[1]) and all(region.private for region in touched[1])


def latest(touched: Sequence[Touched]) -> list[int]:
    """The steps' order with those that write each thread's own memory moved behind others until one needs it.

    What a thread makes for itself is then read before the next barrier wherever it can be (`made_before`).
    """
    order = list(range(len(touched)))
    for place in reversed(range(len(touched))):
        reads, writes = touched[order[place]]
        if not _is_own((reads, writes)):
            continue
        for other in range(place + 1, len(touched)):
            they_read, they_write = touched[order[other]]
            if _any_overlap(writes, [*they_read, *they_write]) or _any_overlap(reads, they_write):
                order.insert(other - 1, order.pop(place))
                break
    return order


def _any_overlap(some: Sequence[MemoryRegion], others: Sequence[MemoryRegion]) -> bool:
    return any(_overlap(a, b) for a in some for b in others)


def made_before(touched: Sequence[Touched], after: Sequence[bool]) -> list[int]:
    """For every step the first before its barrier whose result, each thread's own, it reads; else itself.

    A thread that has not run that one, and all since, can take no part in this one.
    """
    before = list(range(len(touched)))
    written: list[tuple[MemoryRegion, int, int]] = []
    stretch = 0
    for i, (reads, writes) in enumerate(touched):
        for region in (access for access in reads if access.private):
            writer = next((access for access in reversed(written) if _overlap(access[0], region)), None)
            if writer is not None and writer[2] != stretch:
                before[i] = min(before[i], writer[1])
        for region in (access for access in writes if access.private):
            written = [
                access for access in written if (access[0].start, access[0].end) != (region.start, region.end)
            ]
            written.append((region, i, stretch))
        stretch += after[i]
    return before


def _overlap(a: MemoryRegion, b: MemoryRegion) -> bool:
    return a.room == b.room and a.start < b.end and b.start < a.end
