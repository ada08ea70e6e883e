"""The random numbers of a session, one for each token that is drawn.

Knows nothing of what they are for.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import numpy as np


class Numbers(Protocol):
    """Gives random numbers from 0 to below 1: NumPy's `Generator`, or `Foreseen`."""

    def random(self) -> float:
        """The next one."""


class Foreseen:
    """Numbers that can be looked at before they are drawn; the same as `np.random.default_rng(seed)`'s."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)
        self._seen: deque[float] = deque()

    def random(self) -> float:
        """The next one."""
        return self._seen.popleft() if self._seen else float(self._generator.random())

    def ahead(self, i: int) -> float:
        """The number that comes after `i` others; it is not drawn."""
        while len(self._seen) <= i:
            self._seen.append(float(self._generator.random()))
        return self._seen[i]
