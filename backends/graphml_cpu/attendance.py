"""How many threads of a team take part: one less while somebody else has a core that it wants.

A thread that loses its core within its part of a step holds up all others until the system gives it back,
for milliseconds; without it the others would be quicker. Knows counts and ticks; nothing of threads.
"""

from __future__ import annotations

_LOOK = 4  # runs of which the waits are added up before anything is decided
_SHORTEST, _LONGEST = 16, 128  # runs for which a thread stays away
_COSTS = (
    0.6  # of a thread's share of the work: if more than that is lost by waiting, the thread is not worth it
)


class Attendance:
    """Decides from run to run. limit: how many of `n_threads` threads take part in the next."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads = self.limit = n_threads
        self._rest = _SHORTEST
        self._left = _LOOK
        self._since = (0, 0)

    def ran(self, taken: int, late: int) -> None:
        """After a run. taken: ticks of all runs so far; late: those in which a thread waited for late ones.

        Both only grow; late is that of the thread that waited most. A thread that stays away comes back for a
        look; each time that it is still not worth it, it stays away for twice as long.
        """
        self._left -= 1
        if self._left:
            return
        whole, lost = taken - self._since[0], late - self._since[1]
        self._since = taken, late
        if self.limit > 1 and lost > _COSTS / self.limit * whole:
            self.limit -= 1
            self._left, self._rest = self._rest, min(2 * self._rest, _LONGEST)
        else:
            if self.limit == self.n_threads:
                self._rest = _SHORTEST
            self.limit = min(self.limit + 1, self.n_threads)
            self._left = _LOOK
