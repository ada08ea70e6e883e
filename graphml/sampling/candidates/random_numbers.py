"""The random numbers of a session, one for each token that is sampled, and what else its samplers keep.

That is states of filters, and llama.cpp's generators. A state is found by the number of tokens before it and
the last of them. So a rewind needs no call: after it the states behind are passed over. Knows numbers; no
filter.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from graphml.errors import UsageError
from graphml.sampling.candidates.mersenne_twister import MersenneTwister
from graphml.sampling.candidates.moment import SamplerVocabulary

_State: TypeAlias = tuple[float, ...]
_After: TypeAlias = tuple[int, int, _State]
"""Number of tokens, the last of them, and the state behind it."""

DIST = "dist"
"""What llama.cpp calls the sampler that ends a chain and draws, whose generator it is."""


class FilterStates:
    """By filter. A sequence's own: `copy` for another that goes on the same way."""

    def __init__(self) -> None:
        self._states: dict[str, list[_After]] = {}
        self._generators: dict[str, MersenneTwister] = {}

    def copy(self) -> FilterStates:
        """Another one that holds the same."""
        copied = FilterStates()
        copied._states = {name: list(states) for name, states in self._states.items()}
        copied._generators = {name: generator.copy() for name, generator in self._generators.items()}
        return copied

    def at(self, name: str, history: Sequence[int], start: _State) -> _State:
        """The state of a filter after these tokens; later ones are forgotten."""
        states = self._states.get(name, [])
        while states and (states[-1][0] > len(history) or history[states[-1][0] - 1] != states[-1][1]):
            states.pop()
        return states[-1][2] if states else start

    def put(self, name: str, n_tokens: int, token: int, state: _State) -> None:
        """Keep the state behind token number `n_tokens`, counted from 1."""
        self._states.setdefault(name, []).append((n_tokens, token, state))

    def forget(self, keep: int, drop: int) -> None:
        """`drop` tokens from number `keep` on are forgotten, the later ones have moved down."""
        for name, states in self._states.items():
            moved = [(n if n <= keep else n - drop, token, state) for n, token, state in states]
            dropped = range(keep + 1, keep + drop + 1)
            self._states[name] = [
                new for new, (n, _, _) in zip(moved, states, strict=True) if n not in dropped
            ]

    def generator(self, name: str, seed: int) -> MersenneTwister:
        """llama.cpp's generator of a sampler: each has its own, of the same seed."""
        if name not in self._generators:
            self._generators[name] = MersenneTwister(seed)
        return self._generators[name]

    def saved(self) -> dict[str, Any]:
        """All of it, as JSON can hold it."""
        return {
            "states": {name: [[n, token, list(state)] for n, token, state in states]
                       for name, states in self._states.items()},
            "generators": {name: generator.saved() for name, generator in self._generators.items()},
        }  # fmt: skip

    @staticmethod
    def restored(saved: Mapping[str, Any]) -> FilterStates:
        """What was `saved`; UsageError for what is no such thing."""
        restored = FilterStates()
        try:
            for name, states in saved.get("states", {}).items():
                restored._states[str(name)] = [_state_of(*state) for state in states]
            for name, generator in saved.get("generators", {}).items():
                restored._generators[str(name)] = MersenneTwister.restored(generator)
        except (AttributeError, TypeError, ValueError) as error:
            raise UsageError(f"random: wanted the states of samplers; {error!r:.200}") from None
        return restored


def _state_of(n_tokens: Any, token: Any, state: Any) -> _After:
    numbers = tuple(float(number) for number in state)
    if type(n_tokens) is not int or type(token) is not int or n_tokens < 1 or len(numbers) > 8:
        raise ValueError(f"{n_tokens!r:.40} tokens, the last {token!r:.40}")
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"{numbers}")
    return n_tokens, token, numbers


MAX_PEEKED = 1 << 16


class Numbers(Protocol):
    """Gives random numbers from 0 to below 1: NumPy's `Generator`, or `PeekableRandom`."""

    def random(self) -> float:
        """The next one."""


class PeekableRandom:
    """The numbers of `np.random.default_rng(seed)`, which can be looked at before they are used.

    kept: the states of the sequence's samplers; vocabulary: whose texts they read, None where there is none.
    prepared: by filter, what it works out once, before a token is sampled; for the params that it is of.
    """

    def __init__(self, seed: int, vocabulary: SamplerVocabulary | None = None) -> None:
        self.seed, self.vocabulary, self.kept = seed, vocabulary, FilterStates()
        self.prepared: Mapping[str, Any] = {}
        self._generator = np.random.default_rng(seed)
        self._peeked: deque[float] = deque()

    def copy(self) -> PeekableRandom:
        """Another one that gives the same numbers from here on."""
        copied = PeekableRandom(self.seed, self.vocabulary)
        copied._generator.bit_generator.state = self._generator.bit_generator.state
        copied._peeked, copied.kept = self._peeked.copy(), self.kept.copy()
        copied.prepared = self.prepared
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
