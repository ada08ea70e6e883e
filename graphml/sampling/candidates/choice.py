"""The random choice of one candidate. Knows logits and random numbers; no filter."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphml.sampling.candidates.candidates import Candidates, Floats, softmax
from graphml.sampling.candidates.mersenne_twister import MersenneTwister

_Side: TypeAlias = Literal["left", "right"]
Doubles: TypeAlias = NDArray[np.float64]
_BLOCK: Final = 512
_MANY: Final = 8 * _BLOCK
"""From so many candidates on they are summed in blocks: one sum after the other waits for each addition."""


def by_number(logits: Floats, number: float) -> int:
    """The position at which the running sum of exp(logits) passes number, from 0 to 1, of its total."""
    return _position(_weights(logits), number, "right")


def as_llama_cpp(candidates: Candidates, generator: MersenneTwister, discrete: bool) -> int:
    """The position that llama.cpp samples, by its `dist`, or by `std::discrete_distribution`.

    The first uses a number even for a single candidate, the second does not.
    """
    if discrete and len(candidates) == 1:
        return 0
    weights = softmax(candidates) if discrete else _weights(candidates.logits)
    return _position(weights, generator.double(), "left")


def _weights(logits: Floats) -> Floats:
    with np.errstate(over="ignore"):  # two ends of float32's range
        weights: Floats = logits - logits.max()
        np.exp(weights, out=weights)
    return weights


def _position(weights: Floats, share: float, side: _Side) -> int:
    """Where the running sum of weights, float32 [n], reaches (left) or passes (right) a share of all."""
    if len(weights) < _MANY:
        running = np.cumsum(weights, dtype=np.float64)
        return _met(weights, running, _target(share, float(running[-1]), side), side)
    whole = len(weights) // _BLOCK * _BLOCK
    sums = weights[:whole].reshape(-1, _BLOCK).sum(axis=1, dtype=np.float64)
    rest = weights[whole:].sum(dtype=np.float64)
    parts = np.append(sums, rest)
    upto = np.cumsum(parts)
    target = _target(share, float(upto[-1]), side)
    block = min(int(np.searchsorted(upto, target, side=side)), len(upto) - 1)
    first = min(block * _BLOCK, len(weights) - 1)
    inside = weights[first : first + _BLOCK]
    before = float(upto[block - 1]) if block else 0.0
    return first + _met(inside, before + np.cumsum(inside, dtype=np.float64), target, side)


def _target(share: float, total: float, side: _Side) -> float:
    """Below the total where sums must pass it, so that a token of probability 0 at the end is not met."""
    return min(share * total, float(np.nextafter(total, 0.0))) if side == "right" else share * total


def _met(weights: Floats, running: Doubles, target: float, side: _Side) -> int:
    at = int(np.searchsorted(running, target, side=side))
    return at if at < len(running) else int(np.flatnonzero(weights)[-1])
