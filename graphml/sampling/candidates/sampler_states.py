"""What the samplers of one sequence keep from token to token: states of filters, and llama.cpp's generators.

A state is found by the number of tokens before it and the last of them. So a rewind needs no call: after it
the states behind are passed over. Knows tuples of numbers; no filter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from graphml.errors import UsageError
from graphml.sampling.candidates.mersenne_twister import MersenneTwister

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
