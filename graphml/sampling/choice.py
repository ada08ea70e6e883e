"""The random choice of one candidate. Knows logits and random numbers; no filter."""

from __future__ import annotations

import numpy as np

from graphml.sampling.candidates import Candidates, Floats, softmax
from graphml.sampling.mersenne_twister import MersenneTwister


def by_number(logits: Floats, number: float) -> int:
    """The position at which the running sum of exp(logits) passes number, from 0 to 1, of its total."""
    with np.errstate(over="ignore"):  # two ends of float32's range
        weights = np.exp(logits - logits.max())
    running = np.cumsum(weights, dtype=np.float64)
    # Stays below the total, so that a token of probability 0 at the end cannot be met.
    target = min(number * running[-1], np.nextafter(running[-1], 0.0))
    return int(np.searchsorted(running, target, side="right"))


def as_llama_cpp(candidates: Candidates, generator: MersenneTwister, discrete: bool) -> int:
    """The position that llama.cpp samples, by its `dist`, or by `std::discrete_distribution`.

    The first uses a number even for a single candidate, the second does not.
    """
    if discrete and len(candidates) == 1:
        return 0
    if discrete:
        p = softmax(candidates).astype(np.float64)
        running = np.cumsum(p / p.sum())
        running[-1] = 1.0
        return int(np.searchsorted(running, generator.double(), side="left"))
    logits = candidates.logits
    with np.errstate(over="ignore"):
        running = np.cumsum(np.exp(logits - logits.max()), dtype=np.float64)
    target = generator.double() * running[-1]
    return min(int(np.searchsorted(running, target, side="left")), len(logits) - 1)
