"""Dynamic temperature: divides the logits by a temperature that grows with the entropy."""

from __future__ import annotations

import math

import numpy as np

from graphml.sampling.candidates.candidates import Candidates, entropy_of, softmax
from graphml.sampling.candidates.filter import ChainEntry, Filter, Needs
from graphml.sampling.candidates.moment import Moment
from graphml.sampling.filters.temperature import masked_temperature, temperature
from graphml.sampling.settings.params import SamplingParams


def dynamic_temperature(candidates: Candidates, value: float, spread: float, exponent: float) -> Candidates:
    """Divide the logits by a temperature from value - spread to value + spread that grows with the entropy.

    The entropy counts relative to the highest that so many candidates can have, to the power `exponent`.
    """
    if len(candidates) <= 1:
        return candidates
    return temperature(candidates, _value(candidates, value, spread, exponent))


def _value(candidates: Candidates, value: float, spread: float, exponent: float) -> float:
    relative = max(0.0, entropy_of(softmax(candidates))) / math.log(len(candidates))
    low, high = max(0.0, value - spread), value + spread
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        return float(np.float32(low + (high - low) * np.float64(relative) ** exponent))


def _apply(params: SamplingParams, candidates: Candidates, _: Moment) -> Candidates:
    return dynamic_temperature(
        candidates, params.temperature, params.dynatemp_range, params.dynatemp_exponent
    )


def _in_llama_cpp(params: SamplingParams, candidates: Candidates, _: Moment) -> Candidates:
    """Without a range it is the temperature; with one it sorts."""
    value, spread = params.temperature, params.dynatemp_range
    if spread <= 0.0:
        return candidates if value == 1.0 else masked_temperature(candidates, value)
    if len(candidates) <= 1:
        return candidates
    ordered = candidates.by_logit()
    return masked_temperature(ordered, _value(ordered, value, spread, params.dynatemp_exponent))


FILTER = Filter(
    name="dynamic_temperature",
    params_read=("temperature", "dynatemp_range", "dynatemp_exponent"),
    is_on=lambda params: params.dynatemp_range > 0.0,
    apply=_apply,
    needs=Needs.ROW,
    place=130,
    with_mirostat=True,
    entries=(
        ChainEntry(
            "temp_ext",
            {"temp": "temperature", "delta": "dynatemp_range", "exponent": "dynatemp_exponent"},
            is_on=lambda params: True,
            apply=_in_llama_cpp,
        ),
    ),
)
