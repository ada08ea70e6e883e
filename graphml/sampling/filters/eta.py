"""Eta sampling (Hewitt et al. 2022): an epsilon that falls where the entropy is high."""

from __future__ import annotations

import math

from graphml.sampling.candidates.candidates import Candidates, entropy_of, softmax
from graphml.sampling.candidates.filter import ChainEntry, Filter, Needs
from graphml.sampling.filters.epsilon import at_least


def eta(candidates: Candidates, epsilon: float, min_keep: int) -> Candidates:
    """Keep tokens of at least min(epsilon, sqrt(epsilon) * exp(-entropy)), entropy in nats."""
    probabilities = softmax(candidates)
    bound = min(epsilon, math.sqrt(epsilon) * math.exp(-entropy_of(probabilities)))
    return at_least(candidates, probabilities, bound, min_keep)


FILTER = Filter(
    name="eta",
    params_read=("eta_cutoff", "min_keep"),
    is_on=lambda params: params.eta_cutoff > 0.0,
    apply=lambda params, candidates, _: eta(candidates, params.eta_cutoff, params.min_keep),
    needs=Needs.ROW,
    place=110,
    entries=(ChainEntry("eta", {"epsilon": "eta_cutoff", "min_keep": "min_keep"}),),
)
