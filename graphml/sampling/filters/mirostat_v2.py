"""Mirostat 2 (Basu et al. 2021, algorithm 2): keeps tokens whose surprise is at most mu."""

from __future__ import annotations

import numpy as np

from graphml.sampling.candidates.candidates import Candidates, softmax
from graphml.sampling.candidates.filter import ChainEntry, Filter, Needs
from graphml.sampling.filters.mirostat import KEEPS, PARAMETERS
from graphml.sampling.filters.top_k import top_k


def mirostat_v2(candidates: Candidates, mu: float) -> Candidates:
    """Keep tokens with a surprise of at most mu bits, at least one, highest logit first."""
    with np.errstate(divide="ignore"):
        expected = -np.log2(softmax(candidates)) <= mu
    if candidates.is_sorted:  # it may only count as sorted: those before the first surprise stay
        return candidates.head(max(1, len(expected) if expected.all() else int(np.argmin(expected))))
    return top_k(candidates, max(1, int(np.count_nonzero(expected))))


FILTER = Filter(
    name="mirostat_v2",
    params_read=("mirostat", "mirostat_tau", "mirostat_eta"),
    is_on=lambda params: params.mirostat == 2,
    apply=lambda params, candidates, moment: mirostat_v2(candidates, moment.state[0]),
    needs=Needs.STATE,
    place=160,
    always=True,
    keeps=KEEPS,
    selects=True,
    with_mirostat=True,
    entries=(ChainEntry("mirostat_v2", PARAMETERS, is_on=lambda params: True),),
)
