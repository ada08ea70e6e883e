"""Epsilon sampling (Hewitt et al. 2022): keeps tokens of at least a given probability."""

from __future__ import annotations

import numpy as np

from graphml.sampling.candidates.candidates import Candidates, Floats, softmax
from graphml.sampling.candidates.filter import ChainEntry, Filter, Needs
from graphml.sampling.filters.top_k import top_k


def at_least(candidates: Candidates, probabilities: Floats, probability: float, min_keep: int) -> Candidates:
    """Keep tokens of at least this probability; the `min_keep` likeliest, and at least one, in any case."""
    kept = probabilities >= np.float32(probability)
    if np.count_nonzero(kept) >= max(min_keep, 1):
        return candidates.only(kept)
    return top_k(candidates, max(min_keep, 1))


FILTER = Filter(
    name="epsilon",
    params_read=("epsilon_cutoff", "min_keep"),
    is_on=lambda params: params.epsilon_cutoff > 0.0,
    apply=lambda params, candidates, _: at_least(
        candidates, softmax(candidates), params.epsilon_cutoff, params.min_keep
    ),
    needs=Needs.ROW,
    place=100,
    entries=(ChainEntry("epsilon", {"epsilon": "epsilon_cutoff", "min_keep": "min_keep"}),),
)
