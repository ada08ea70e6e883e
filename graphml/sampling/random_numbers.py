"""The random numbers of a session, one for each token that is sampled.

Knows nothing of what they are for.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import numpy as np


class Numbers(Protocol):
    """Gives random numbers from 0 to below 1: NumPy's `Generator`, or `PeekableRandom`."""

    def random(self) -> float:
        """The next one."""


class PeekableRandom:
    """The numbers of `np.random.default_rng(seed)`, which can be looked at before they are used."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)
        self._peeked: deque[float] = deque()

    def random(self) -> float:
        """The next one."""
        return self._peeked.popleft() if self._peeked else float(self._generator.random())

    def peek(self, i: int) -> float:
        """The number that comes after `i` others; it stays to be used."""
        while len(self._peeked) <= i:
            self._peeked.append(float(self._generator.random()))
        return self._peeked[i]
