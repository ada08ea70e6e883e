"""Locally typical sampling (Meister et al. 2022): keeps tokens whose surprise is near to the entropy."""

from __future__ import annotations

import numpy as np

from graphml.sampling.candidates.candidates import (
    ADDED_IN_ORDER,
    Candidates,
    entropy_of,
    shortest_prefix,
    softmax,
)
from graphml.sampling.candidates.filter import ChainEntry, Filter, Needs
from graphml.sampling.candidates.moment import Moment
from graphml.sampling.settings.params import SamplingParams


def typical(candidates: Candidates, p: float, min_keep: int) -> Candidates:
    """Keep the tokens whose surprise is nearest to the entropy, until they together exceed p.

    Returned nearest first, so no longer sorted by logit.
    """
    probabilities = softmax(candidates)
    with np.errstate(divide="ignore"):
        nearness = np.log(probabilities)  # a token of probability 0 is the least typical
    nearness += np.float32(entropy_of(probabilities))
    np.abs(nearness, out=nearness)
    np.negative(nearness, out=nearness)
    kept = shortest_prefix(nearness, probabilities, p, min_keep, beyond=True)
    return candidates.take(kept, is_sorted=False)


def _in_llama_cpp(params: SamplingParams, candidates: Candidates, _: Moment) -> Candidates:
    """It sorts first, so that sums of probabilities begin with the highest; of many that counts less."""
    few = len(candidates) <= ADDED_IN_ORDER
    return typical(candidates.by_logit() if few else candidates, params.typical_p, params.min_keep)


FILTER = Filter(
    name="typical",
    params_read=("typical_p", "min_keep"),
    is_on=lambda params: params.typical_p < 1.0,
    apply=lambda params, candidates, _: typical(candidates, params.typical_p, params.min_keep),
    needs=Needs.ROW,
    place=70,
    entries=(ChainEntry("typical", {"p": "typical_p", "min_keep": "min_keep"}, apply=_in_llama_cpp),),
)
