"""Dynamic temperature: divides the logits by a temperature that grows with the entropy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from graphml.sampling.candidates import Candidates, softmax
from graphml.sampling.filter import Filter, Needs
from graphml.sampling.filters.temperature import temperature
from graphml.sampling.params import SamplingParams


def dynamic_temperature(candidates: Candidates, value: float, spread: float, exponent: float) -> Candidates:
    """Divide the logits by a temperature from value - spread to value + spread that grows with the entropy.

    The entropy counts relative to the highest that so many candidates can have, to the power `exponent`.
    """
    if len(candidates) <= 1:
        return candidates
    probabilities = softmax(candidates)
    possible = probabilities[probabilities > 0]
    entropy = float(-np.sum(possible * np.log(possible), dtype=np.float32))
    relative = max(0.0, entropy) / math.log(len(candidates))
    low, high = max(0.0, value - spread), value + spread
    return temperature(candidates, low + (high - low) * relative**exponent)


def _apply(params: SamplingParams, candidates: Candidates, history: Sequence[int]) -> Candidates:
    return dynamic_temperature(
        candidates, params.temperature, params.dynatemp_range, params.dynatemp_exponent
    )


FILTER = Filter(
    name="dynamic_temperature",
    params_read=("temperature", "dynatemp_range", "dynatemp_exponent"),
    is_on=lambda params: params.dynatemp_range > 0.0,
    apply=_apply,
    needs=Needs.ROW,
)
