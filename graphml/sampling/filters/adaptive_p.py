"""Adaptive-p (llama.cpp #17927): prefers tokens whose probability is near to a target.

The target moves against the mean of the probabilities of the tokens before, so that this mean meets it.
"""

from __future__ import annotations

import numpy as np

from graphml.sampling.candidates.candidates import Candidates, forbidden, softmax
from graphml.sampling.candidates.filter import ChainEntry, Filter, Needs, State, Stateful
from graphml.sampling.candidates.moment import Moment
from graphml.sampling.settings.params import SamplingParams

PEAK, SHARPNESS, WIDTH = 5.0, 10.0, 0.3


def adaptive_p(candidates: Candidates, target: float) -> Candidates:
    """Give tokens the logits 5 - 10 d^2 / (1 + d), where d is (p - target) / 0.3; -inf stays."""
    distance = softmax(candidates)  # and on in place: new arrays of a row take longer than the arithmetic
    distance -= np.float32(target)
    np.abs(distance, out=distance)
    distance /= np.float32(WIDTH)
    logits = distance * np.float32(SHARPNESS)
    logits *= distance
    distance += np.float32(1)
    logits /= distance
    np.subtract(np.float32(PEAK), logits, out=logits)
    if candidates.logits.min() == -np.inf:
        logits = forbidden(logits, candidates.logits == -np.inf)
    return candidates.with_logits(logits, is_sorted=False)


def adapted(target: float, state: State) -> float:
    """The target of the next token: as far from the target as the mean so far, on the other side."""
    weighted_sum, weights = state
    wanted = min(max(target, 0.0), 1.0)
    return min(max(2.0 * wanted - weighted_sum / weights, 0.0), 1.0)


def _decay(params: SamplingParams) -> float:
    return min(max(params.adaptive_decay, 0.0), 0.99)


def _start(params: SamplingParams) -> State:
    weights = 1.0 / (1.0 - _decay(params))
    return params.adaptive_target * weights, weights


def _after(
    params: SamplingParams, state: State, before: Candidates, _: Candidates, at: tuple[int, int]
) -> State:
    if params.adaptive_target < 0.0:
        return state
    decay = _decay(params)
    return float(softmax(before)[at[0]]) + decay * state[0], 1.0 + decay * state[1]


def _apply(params: SamplingParams, candidates: Candidates, moment: Moment) -> Candidates:
    target = params.adaptive_target
    return candidates if target < 0.0 else adaptive_p(candidates, adapted(target, moment.state))


FILTER = Filter(
    name="adaptive_p",
    params_read=("adaptive_target", "adaptive_decay"),
    is_on=lambda params: params.adaptive_target >= 0.0,
    apply=_apply,
    needs=Needs.STATE,
    place=170,
    always=True,
    keeps=Stateful(_start, _after, on_accept=True),
    selects=True,
    entries=(
        ChainEntry(
            "adaptive_p",
            {"target": "adaptive_target", "decay": "adaptive_decay"},
            is_on=lambda params: True,
        ),
    ),
)
