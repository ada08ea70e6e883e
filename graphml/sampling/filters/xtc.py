"""XTC, exclude top choices (p-e-w 2024, text-generation-webui #6335): at times removes the likeliest."""

from __future__ import annotations

import numpy as np

from graphml.sampling.candidates import Candidates, softmax
from graphml.sampling.filter import Entry, Filter, Needs
from graphml.sampling.moment import Moment
from graphml.sampling.params import SamplingParams


def xtc(candidates: Candidates, threshold: float, min_keep: int) -> Candidates:
    """Remove all tokens at least `threshold` likely but the least likely of them; highest logit first.

    None is removed where fewer than `min_keep` would stay.
    """
    ordered = candidates.by_logit()
    below = np.flatnonzero(softmax(ordered) < np.float32(threshold))
    last = (int(below[0]) if len(below) else len(ordered)) - 1
    if last <= 0 or len(ordered) - last < min_keep:
        return ordered
    return Candidates(ordered.ids[last:], ordered.logits[last:], is_sorted=True)


def _apply(params: SamplingParams, candidates: Candidates, moment: Moment) -> Candidates:
    if len(candidates) < 2 or moment.chance() > np.float32(params.xtc_probability):
        return candidates
    return xtc(candidates, params.xtc_threshold, params.min_keep)


FILTER = Filter(
    name="xtc",
    params_read=("xtc_probability", "xtc_threshold", "min_keep"),
    is_on=lambda params: params.xtc_probability > 0.0 and params.xtc_threshold <= 0.5,
    apply=_apply,
    needs=Needs.ROW,
    place=120,
    entries=(
        Entry(
            "xtc",
            {"probability": "xtc_probability", "threshold": "xtc_threshold", "min_keep": "min_keep"},
        ),
    ),
)
