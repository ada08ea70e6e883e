"""Top-p, nucleus sampling (Holtzman et al. 2020): keeps the most likely tokens that together reach p."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphml.sampling.candidates.candidates import Candidates, shortest_prefix, softmax
from graphml.sampling.candidates.filter import ChainEntry, Enough, Filter, NeedsTopK
from graphml.sampling.candidates.sorted_rows import SortedRows, column
from graphml.sampling.candidates.top_k_logits import TopK
from graphml.sampling.settings.params import SamplingParams

_MARGIN = 2e-5
"""How far from an edge between two tokens the sum of probabilities must be: sums differ by their order."""


def top_p(candidates: Candidates, p: float, min_keep: int) -> Candidates:
    """Keep the fewest tokens, most likely first, that together reach p."""
    probabilities = softmax(candidates)
    if candidates.is_sorted:
        running = np.cumsum(probabilities, dtype=np.float32)
        needed = int(np.searchsorted(running, np.float32(p))) + 1
        return candidates.head(max(needed, min_keep))
    kept = shortest_prefix(candidates.logits, probabilities, p, min_keep)
    return candidates.take(kept, is_sorted=True)


def _rows(params: Sequence[SamplingParams], rows: SortedRows) -> SortedRows:
    count = rows.equal_count
    if count is None:  # sums of different lengths are added up in different orders
        each = (
            top_p(
                Candidates(rows.ids[i, :n], rows.logits[i, :n], True), row_params.top_p, row_params.min_keep
            )
            for i, (n, row_params) in enumerate(zip(rows.counts, params, strict=True))
        )
        return rows.heads(np.array([len(candidates) for candidates in each]))
    weights = rows.logits[:, :count] - rows.logits[:, :1]
    np.exp(weights, out=weights)
    weights /= np.cumsum(weights, axis=1, dtype=np.float32)[:, -1:]  # summed as `softmax` does
    running = np.cumsum(weights, axis=1, dtype=np.float32)
    needed = (running < column([row_params.top_p for row_params in params])).sum(axis=1) + 1
    return rows.heads(np.maximum(needed, [row_params.min_keep for row_params in params]))


def _of_top_k(params: SamplingParams, top: TopK) -> Candidates | None:
    leading = top.candidates
    running = np.cumsum(np.exp(leading.logits.astype(np.float64) - top.log_sum))
    margin = _MARGIN + abs(top.log_sum) * 2.0**-22
    needed = int(np.searchsorted(running, params.top_p)) + 1
    near = np.abs(running - params.top_p).min() <= margin
    kept = max(needed, params.min_keep)
    whole = len(leading) == top.n_vocab
    if near or (kept > len(leading) and not whole):
        return None
    return leading.head(kept)


FILTER = Filter(
    name="top_p",
    params_read=("top_p", "min_keep"),
    is_on=lambda params: params.top_p < 1.0,
    apply=lambda params, candidates, _: top_p(candidates, params.top_p, params.min_keep),
    needs=NeedsTopK(enough=lambda params, k: Enough.OFTEN, candidates=_of_top_k),
    place=80,
    entries=(ChainEntry("top_p", {"p": "top_p", "min_keep": "min_keep"}),),
    rows=_rows,
    on_device=lambda params: {"top_p": params.top_p} if params.min_keep <= 1 else None,
)
