"""Which replica a simulated request goes to: by its beginning as in a cluster, by turns, or by load.

Knows names, loads and texts; nothing of when.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from typing import Protocol

from graphml.cluster.prefix_routing import PrefixRouter
from graphml.errors import UsageError
from graphml.simulation.arrivals import Arrival

CHARACTERS = 4
"""Of a token's text, as the router's own block says: 128 are about 32 tokens."""


class ReplicaChoice(Protocol):
    """Chooses a replica for each request."""

    def choose(self, arrival: Arrival, number: int, loads: Mapping[str, int]) -> str:
        """The replica for a request of this number. loads: requests under way, of each that may be chosen."""

    def forget(self, replica: str) -> None:
        """A replica has lost what it has read."""


class ByPrefix:
    """The cluster's own router, which sees a text as long as the prompt."""

    def __init__(self) -> None:
        self._router = PrefixRouter()

    def choose(self, arrival: Arrival, number: int, loads: Mapping[str, int]) -> str:
        """One that has read the longest part of its beginning."""
        own = _repeated(f"own {number}", arrival.n_prompt - arrival.n_prefix)
        return self._router.choose(_repeated(arrival.prefix, arrival.n_prefix) + own, loads)

    def forget(self, replica: str) -> None:
        """The router forgets it."""
        self._router.forget(replica)


@lru_cache(4096)
def _repeated(name: str, n_tokens: int) -> str:
    length = CHARACTERS * n_tokens
    return (f"{name} " * (length // (len(name) + 1) + 1))[:length]


class ByTurns:
    """The one that was chosen least recently, whatever they have read or have to do."""

    def __init__(self) -> None:
        self._turns: deque[str] = deque()

    def choose(self, arrival: Arrival, number: int, loads: Mapping[str, int]) -> str:
        """The next one; a new one is the next."""
        known = set(self._turns) if len(self._turns) != len(loads) else None
        if known is not None:
            self._turns.extendleft(name for name in loads if name not in known)
        while (name := self._turns.popleft()) not in loads:
            pass
        self._turns.append(name)
        return name

    def forget(self, replica: str) -> None:
        """It is a new one, if it comes back."""
        if replica in self._turns:
            self._turns.remove(replica)


class ByLoad:
    """The one with the fewest requests under way; of several the one that was chosen least recently."""

    def __init__(self) -> None:
        self._chosen: dict[str, int] = {}

    def choose(self, arrival: Arrival, number: int, loads: Mapping[str, int]) -> str:
        """The least busy one."""
        least = min(loads.values())
        idle = [name for name, load in loads.items() if load == least]
        name = min(idle, key=lambda name: self._chosen.get(name, -1))
        self._chosen[name] = number
        return name

    def forget(self, replica: str) -> None:
        """It has never known."""


CHOICES: Mapping[str, type[ByPrefix] | type[ByTurns] | type[ByLoad]] = {
    "prefix": ByPrefix, "round-robin": ByTurns, "least-loaded": ByLoad,
}  # fmt: skip


def choice_of(name: str) -> ReplicaChoice:
    """A new one of this name; UsageError for another."""
    if name not in CHOICES:
        raise UsageError(f"routing: wanted one of {', '.join(CHOICES)}; got {name!r}")
    return CHOICES[name]()
