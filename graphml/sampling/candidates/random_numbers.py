"""The random numbers of a session, one for each token that is sampled, and what else its samplers keep.

Knows nothing of what they are for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from graphml.errors import UsageError
from graphml.sampling.candidates.moment import SamplerVocabulary
from graphml.sampling.candidates.sampler_states import FilterStates

MAX_PEEKED = 1 << 16


class Numbers(Protocol):
    """Gives random numbers from 0 to below 1: NumPy's `Generator`, or `PeekableRandom`."""

    def random(self) -> float:
        """The next one."""


class PeekableRandom:
    """The numbers of `np.random.default_rng(seed)`, which can be looked at before they are used.

    kept: the states of the sequence's samplers; vocabulary: whose texts they read, None where there is none.
    """

    def __init__(self, seed: int, vocabulary: SamplerVocabulary | None = None) -> None:
        self.seed, self.vocabulary, self.kept = seed, vocabulary, FilterStates()
        self._generator = np.random.default_rng(seed)
        self._peeked: deque[float] = deque()

    def copy(self) -> PeekableRandom:
        """Another one that gives the same numbers from here on."""
        copied = PeekableRandom(self.seed, self.vocabulary)
        copied._generator.bit_generator.state = self._generator.bit_generator.state
        copied._peeked, copied.kept = self._peeked.copy(), self.kept.copy()
        return copied

    def random(self) -> float:
        """The next one."""
        return self._peeked.popleft() if self._peeked else float(self._generator.random())

    def peek(self, i: int) -> float:
        """The number that comes after `i` others; it stays to be used."""
        while len(self._peeked) <= i:
            self._peeked.append(float(self._generator.random()))
        return self._peeked[i]

    def saved(self) -> dict[str, Any]:
        """Which numbers come next, as JSON can hold it; `restored` has them again."""
        numbers = {"generator": self._generator.bit_generator.state, "peeked": list(self._peeked)}
        return {**numbers, "kept": self.kept.saved()}

    @staticmethod
    def restored(saved: Mapping[str, Any], seed: int = 0) -> PeekableRandom:
        """The numbers that came next when it was `saved`; UsageError for what is no such state."""
        restored = PeekableRandom(seed)
        try:
            inner = dict(saved["generator"]["state"])
            words = {name: int(inner[name]) for name in ("state", "inc")}
            whole = {name: int(saved["generator"][name]) for name in ("has_uint32", "uinteger")}
            peeked = [float(number) for number in saved["peeked"]]
            if not all(0 <= word < 1 << 128 for word in words.values()) or not words["inc"] & 1:
                raise ValueError("its words are out of range")
            if whole["has_uint32"] not in (0, 1) or not 0 <= whole["uinteger"] < 1 << 32:
                raise ValueError("its last word is out of range")
            if len(peeked) > MAX_PEEKED or not all(0 <= number < 1 for number in peeked):
                raise ValueError("its numbers are out of range")
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise UsageError(f"random: wanted the state of a random generator; {error!r:.200}") from None
        restored._generator.bit_generator.state = {"bit_generator": "PCG64", "state": words, **whole}
        restored._peeked.extend(peeked)
        restored.kept = FilterStates.restored(saved.get("kept", {}))
        return restored
