"""Top-n-sigma (Tang et al. 2024, "Top-nσ: Not All Logits Are You Need"): keeps logits near to the highest."""

from __future__ import annotations

import numpy as np

from graphml.sampling.candidates import Candidates
from graphml.sampling.filter import Entry, Filter, Needs


def top_n_sigma(candidates: Candidates, n: float) -> Candidates:
    """Forbid (-inf) logits more than n standard deviations of all finite ones below the highest."""
    logits = candidates.logits
    if len(logits) <= 1:
        return candidates
    finite = logits[np.isfinite(logits)]
    if not len(finite):
        return candidates
    lowest = finite.max() - np.float32(n) * np.float32(finite.std(dtype=np.float64))
    return candidates.with_logits(
        np.where(logits < lowest, np.float32(-np.inf), logits), candidates.is_sorted
    )


FILTER = Filter(
    name="top_n_sigma",
    params_read=("top_n_sigma",),
    is_on=lambda params: params.top_n_sigma > 0.0,
    apply=lambda params, candidates, _: top_n_sigma(candidates, params.top_n_sigma),
    needs=Needs.ROW,
    place=50,
    entries=(Entry("top_n_sigma", {"n": "top_n_sigma"}),),
)
