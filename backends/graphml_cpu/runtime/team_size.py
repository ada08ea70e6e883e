"""How many threads of a team take part: one less while another process occupies a core.

A thread that loses its core within its part of a step holds up all others until the system schedules it
again, for milliseconds; without it the others would be quicker. Knows counts and times; nothing of threads.
"""

from __future__ import annotations

_LOOK = 4  # runs of which the waits are added up before anything is decided
# Seconds for which a thread is left out. Short at first: pages that come from the disk make threads late too.
_SHORTEST, _LONGEST = 0.1, 2.0
# Part of a thread's share of the work: where waiting loses more than that, the thread is not worth it.
_COSTS = 0.6


class TeamSize:
    """Decides from run to run. limit: how many of `n_threads` threads take part in the next."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads = self.limit = n_threads
        self._rest = _SHORTEST
        self._until = 0.0  # when a thread that is left out rejoins for a trial run
        self._runs = 0
        self._since = (0, 0)

    def ran(self, taken: int, late: int, now: float) -> None:
        """After a run. taken: ticks of all runs so far; late: those in which a thread waited for late ones.

        Both only grow; late is that of the thread that waited most. now: seconds of a clock. A thread that
        stays away comes back for a look; each time that it is still not worth it, it stays away for twice as
        long.
        """
        self._runs += 1
        if now < self._until or (self._runs < _LOOK and not self._until):
            return
        whole, lost = taken - self._since[0], late - self._since[1]
        self._since, self._runs = (taken, late), 0
        if self.limit > 1 and lost > _COSTS / self.limit * whole:
            self.limit -= 1
            self._until, self._rest = now + self._rest, min(2 * self._rest, _LONGEST)
        else:
            if self.limit == self.n_threads:
                self._rest = _SHORTEST
            self.limit = min(self.limit + 1, self.n_threads)
            self._until = 0.0
