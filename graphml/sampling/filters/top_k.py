"""Top-k: keeps the k highest logits."""

from __future__ import annotations

import numpy as np

from graphml.sampling.candidates.candidates import Candidates, leading
from graphml.sampling.candidates.filter import ChainEntry, Enough, Filter, NeedsTopK


def top_k(candidates: Candidates, k: int) -> Candidates:
    """Keep the k highest logits, highest first."""
    k = min(k, len(candidates))
    if candidates.is_sorted:
        return candidates.head(k)
    return candidates.take(leading(candidates.logits, k), is_sorted=True)


FILTER = Filter(
    name="top_k",
    params_read=("top_k",),
    is_on=lambda params: params.top_k > 0,
    apply=lambda params, candidates, _: top_k(candidates, params.top_k),
    needs=NeedsTopK(
        enough=lambda params, k: Enough.ALWAYS if params.top_k <= k else Enough.NEVER,
        candidates=lambda params, top: top.candidates.head(min(params.top_k, top.n_vocab)),
    ),
    place=60,
    entries=(ChainEntry("top_k", {"k": "top_k"}),),
    rows=lambda params, rows: rows.heads(np.array([row_params.top_k for row_params in params])),
    on_device=lambda params: {"top_k": float(params.top_k)},
)
