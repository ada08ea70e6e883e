"""XTC, exclude top choices (p-e-w 2024, text-generation-webui #6335): at times removes the likeliest."""

from __future__ import annotations

import numpy as np

from graphml.sampling.candidates.candidates import Candidates, leading, softmax
from graphml.sampling.candidates.filter import ChainEntry, Filter, Needs
from graphml.sampling.candidates.moment import Moment
from graphml.sampling.settings.params import SamplingParams


def xtc(candidates: Candidates, threshold: float, min_keep: int) -> Candidates:
    """Remove all tokens at least `threshold` likely but the least likely of them; the order stays.

    None is removed where fewer than `min_keep` would stay. Forbidden tokens are never likely.
    """
    possible = candidates.logits > -np.inf
    likely = np.flatnonzero((softmax(candidates) >= np.float32(threshold)) & possible)
    n_removed = len(likely) - 1
    if n_removed <= 0 or len(candidates) - n_removed < min_keep:
        return candidates
    least = likely[leading(candidates.logits[likely], len(likely))[-1]]
    kept = np.ones(len(candidates), np.bool_)
    kept[likely] = False
    kept[least] = True
    return candidates.only(kept)


def _fires(params: SamplingParams, candidates: Candidates, moment: Moment) -> bool:
    return len(candidates) >= 2 and moment.chance() <= float(np.float32(params.xtc_probability))


def _apply(params: SamplingParams, candidates: Candidates, moment: Moment) -> Candidates:
    if not _fires(params, candidates, moment):
        return candidates
    return xtc(candidates, params.xtc_threshold, params.min_keep)


def _in_llama_cpp(params: SamplingParams, candidates: Candidates, moment: Moment) -> Candidates:
    """Where it fires, it sorts: then those to remove are the first. What counts as sorted stays as it is."""
    if not _fires(params, candidates, moment):
        return candidates
    ordered = candidates if candidates.is_sorted else candidates.by_logit()
    likely = softmax(ordered) >= np.float32(params.xtc_threshold)
    n_removed = (len(likely) if likely.all() else int(np.argmin(likely))) - 1
    stays = n_removed <= 0 or len(ordered) - n_removed < params.min_keep
    return (
        ordered if stays else Candidates(ordered.ids[n_removed:], ordered.logits[n_removed:], is_sorted=True)
    )


FILTER = Filter(
    name="xtc",
    params_read=("xtc_probability", "xtc_threshold", "min_keep"),
    is_on=lambda params: params.xtc_probability > 0.0 and params.xtc_threshold <= 0.5,
    apply=_apply,
    needs=Needs.ROW,
    place=120,
    entries=(
        ChainEntry(
            "xtc",
            {"probability": "xtc_probability", "threshold": "xtc_threshold", "min_keep": "min_keep"},
            apply=_in_llama_cpp,
        ),
    ),
)
