"""Where threads must wait for each other: where a step touches memory that an earlier one touches too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from graphml_cpu.lowering.step import Argument, Step


@dataclass(frozen=True)
class Region:
    """Memory that a step touches: `room` (arena or a state), from `start` to `end`.

    private: each thread touches a part of its own, the same one whenever start and end are the same.
    """

    room: str
    start: int
    end: int
    private: bool = False

    def meets(self, other: Region) -> bool:
        """Whether one thread's access to this may touch what another thread accesses in the other."""
        if self.room != other.room or self.start >= other.end or other.start >= self.end:
            return False
        same = (self.start, self.end) == (other.start, other.end)
        return not (self.private and other.private and same)


class Regions(Protocol):
    """Says what memory an argument stands for."""

    def region(self, argument: Argument) -> Region | None:
        """None for numbers, weights and scratch of one thread, which never conflict."""


def barriers(steps: Sequence[Step], places: Regions) -> list[bool]:
    """For every step whether all threads wait after it.

    A step waits for those since the last barrier that wrote what it reads or writes, or read what it writes.
    """
    after = [False] * len(steps)
    reads: list[Region] = []
    writes: list[Region] = []
    for i, step in enumerate(steps):
        mine_read, mine_written = _touched(step, places)
        behind = any(r.meets(w) for w in writes for r in (*mine_read, *mine_written))
        ahead = any(w.meets(r) for r in reads for w in mine_written)
        if behind or ahead:
            after[i - 1] = True
            reads, writes = [], []
        reads += mine_read
        writes += mine_written
    if after:
        after[-1] = True
    return after


def _touched(step: Step, places: Regions) -> tuple[list[Region], list[Region]]:
    reads: list[Region] = []
    writes: list[Region] = []
    for name, argument in step.arguments.items():
        region = places.region(argument)
        if region is not None:
            (writes if name in step.writes else reads).append(region)
    return reads, writes
