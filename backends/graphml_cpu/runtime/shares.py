"""How many threads share a step, and in how many parts: by its cost.

On few threads each step is shared by all. On more, each thread that takes part makes the barrier longer for
all, so that a step is given to as many as shorten it. Knows times; nothing of kernels or threads. The model
and what follows from it: docs/cpu.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

# Up to so many threads each step is shared by all of them, in so many parts each: the claims of all are read
# in less time than is lost where one thread is late.
ALL_SHARE = 8
PARTS = 4
# Nanoseconds that a thread adds to a barrier: to enter and to leave it changes one word that all change. From
# one cluster of cores to the next that takes 50 to 150 ns.
JOINING = 200
# Nanoseconds of work for which a part is worth its claim, which takes 10 to 30.
_SHORTEST_PART = 300

OWNERS_SHIFT = 16


@dataclass(frozen=True)
class Shares:
    """owners: how many threads, from the first on, have parts of their own; parts: how many each has."""

    owners: int
    parts: int

    @property
    def packed(self) -> int:
        """One number, as the walker reads it; 0: every thread has one part, which no other takes."""
        return (self.owners << OWNERS_SHIFT) + self.parts if self.parts else 0


def members(cost_ns: float, n_threads: int) -> int:
    """How many threads work between two barriers, where their work takes one thread so long.

    With m threads it takes cost / m + m * JOINING, the least where m is the root of cost / JOINING.
    """
    if n_threads <= ALL_SHARE:
        return n_threads
    return max(1, min(n_threads, isqrt(max(0, round(cost_ns / JOINING)))))


def shares(costs_ns: Sequence[float | None], n_threads: int) -> list[Shares]:
    """The shares of the steps between two barriers. A cost of None: a step that all threads run whole."""
    if n_threads <= ALL_SHARE:
        return [Shares(n_threads, PARTS) for _ in costs_ns]
    most = members(sum(cost or 0.0 for cost in costs_ns), n_threads)
    dealt = []
    for cost in costs_ns:
        n_parts = round((cost or 0.0) / _SHORTEST_PART)
        owners = max(1, min(most, n_parts))
        dealt.append(Shares(owners, max(1, min(PARTS, n_parts // owners))))
    return dealt
