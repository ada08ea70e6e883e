"""Top-n-sigma (Tang et al. 2024, "Top-nσ: Not All Logits Are You Need"): keeps logits near to the highest."""

from __future__ import annotations

import numpy as np

from graphml.sampling.candidates.candidates import Candidates, Floats
from graphml.sampling.candidates.filter import ChainEntry, Filter, Needs

_LARGE = 1e15


def top_n_sigma(candidates: Candidates, n: float) -> Candidates:
    """Forbid (-inf) logits more than n standard deviations of all finite ones below the highest."""
    logits = candidates.logits
    if len(logits) <= 1:
        return candidates
    finite = logits if np.isfinite(logits.min()) else np.compress(np.isfinite(logits), logits)
    if not len(finite):
        return candidates
    lowest = finite.max() - np.float32(n) * _deviation(finite)
    return candidates.forbidding(logits < lowest)


def _deviation(values: Floats) -> np.float32:
    """The standard deviation of finite values; squares of what float32 cannot hold are float64."""
    if max(values.max(), -values.min()) > _LARGE:
        return np.float32(values.std(dtype=np.float64))
    apart = values - np.float32(values.mean(dtype=np.float64))
    apart *= apart
    return np.float32(np.sqrt(apart.mean(dtype=np.float64)))


FILTER = Filter(
    name="top_n_sigma",
    params_read=("top_n_sigma",),
    is_on=lambda params: params.top_n_sigma > 0.0,
    apply=lambda params, candidates, _: top_n_sigma(candidates, params.top_n_sigma),
    needs=Needs.ROW,
    place=50,
    entries=(ChainEntry("top_n_sigma", {"n": "top_n_sigma"}),),
)
