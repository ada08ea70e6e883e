"""Min-p: keeps tokens at least p times as likely as the most likely one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from graphml.sampling.candidates.candidates import Candidates
from graphml.sampling.candidates.filter import ChainEntry, Enough, Filter, NeedsTopK
from graphml.sampling.candidates.sorted_rows import SortedRows, column
from graphml.sampling.candidates.top_k_logits import TopK
from graphml.sampling.filters.top_k import top_k
from graphml.sampling.settings.params import SamplingParams


def min_p(candidates: Candidates, p: float, min_keep: int) -> Candidates:
    """Keep tokens at least p times as likely as the most likely one; p above 1 keeps that one."""
    logits, at_least = candidates.logits, max(min_keep, 1)
    if candidates.is_sorted:
        fails = np.flatnonzero(logits[at_least:] < logits[0] + np.float32(math.log(p)))
        return candidates.head(at_least + int(fails[0]) if len(fails) else len(candidates))
    kept = logits >= logits.max() + np.float32(math.log(p))
    if np.count_nonzero(kept) >= at_least:
        return candidates.only(kept)
    return top_k(candidates, at_least)


def _rows(params: Sequence[SamplingParams], rows: SortedRows) -> SortedRows:
    lowest = rows.logits[:, :1] + column([math.log(row_params.min_p) for row_params in params])
    counts = (rows.logits >= lowest).sum(axis=1)
    return rows.heads(np.maximum(counts, [max(row_params.min_keep, 1) for row_params in params]))


def _of_top_k(params: SamplingParams, top: TopK) -> Candidates | None:
    top_candidates = top.candidates
    lowest = top_candidates.logits[0] + np.float32(math.log(params.min_p))
    count = int((top_candidates.logits >= lowest).sum())
    if len(top_candidates) < top.n_vocab and max(count + 1, params.min_keep) > len(top_candidates):
        return None
    if count < params.min_keep:
        return top_candidates.head(params.min_keep)
    kept = top_candidates.head(count)  # the whole row is not sorted: there they are in the order of their ids
    return kept.take(np.argsort(kept.ids), is_sorted=False)


FILTER = Filter(
    name="min_p",
    params_read=("min_p", "min_keep"),
    is_on=lambda params: params.min_p > 0.0,
    apply=lambda params, candidates, _: min_p(candidates, params.min_p, params.min_keep),
    needs=NeedsTopK(enough=lambda params, k: Enough.OFTEN, candidates=_of_top_k),
    place=90,
    entries=(ChainEntry("min_p", {"p": "min_p", "min_keep": "min_keep"}),),
    # To the last bit what the filter adds: a device that samples a row returns shares of what it leaves.
    rows=_rows,
    on_device=lambda params: {"lowest": math.log(params.min_p)} if params.min_keep <= 1 else None,
)
