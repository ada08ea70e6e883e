"""The order in which sequences are served: by priority, then fairly between keys, then first come.

What each key was served is counted in rows for its weight (virtual token counters, Sheng et al. 2024,
arXiv:2401.00588); a key that comes new begins with the least of the others, so that it catches up on nothing.

Knows sequences and counts; nothing of blocks or steps.
"""

from __future__ import annotations

from collections.abc import Iterable

from graphml.runtime.blocks.request import Request
from graphml.runtime.blocks.sequence import Sequence


class FairOrder:
    """What the keys of waiting and running sequences were served."""

    def __init__(self) -> None:
        self._served: dict[str | None, float] = {}

    def __len__(self) -> int:
        return len(self._served)

    def came(self, key: str | None) -> None:
        """A sequence of a key waits."""
        if key not in self._served:
            self._served[key] = min(self._served.values(), default=0.0)

    def serve(self, request: Request, n_rows: int) -> None:
        """A request has so many rows in a step."""
        self._served[request.key] += n_rows / request.weight

    def left(self, key: str | None, others: Iterable[Sequence]) -> None:
        """A sequence of a key has ended, beside others."""
        if all(other.request.key != key for other in others):
            del self._served[key]

    def sort(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """By priority, then those that wait for a token, then whose key was served least, then first come."""

        def rank(sequence: Sequence) -> tuple[int, bool, float, int]:
            request = sequence.request
            return -request.priority, sequence.n_behind > 1, self._served[request.key], sequence.order

        return sorted(sequences, key=rank)
