"""Logit bias: adds a value to the logits of some tokens."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from graphml.errors import UsageError
from graphml.sampling.candidates import Candidates, in_float32_range
from graphml.sampling.filter import Filter, Needs


def logit_bias(candidates: Candidates, bias: Mapping[int, float]) -> Candidates:
    """Add a value to the logits of some tokens; expects the whole vocabulary, in id order.

    Raises UsageError for an id outside the vocabulary.
    """
    highest = max(bias, default=-1)
    if highest >= len(candidates):
        raise UsageError(
            f"logit_bias: wanted token ids below the vocabulary's size {len(candidates)}, got {highest}"
        )
    logits = candidates.logits.copy()
    ids = np.fromiter(bias.keys(), np.int64, len(bias))
    added = np.fromiter(bias.values(), np.float32, len(bias))
    with np.errstate(over="ignore"):
        logits[ids] = in_float32_range(logits[ids] + added, np.isfinite(logits[ids]) & np.isfinite(added))
    return candidates.with_logits(logits, is_sorted=False)


FILTER = Filter(
    name="logit_bias",
    params_read=("logit_bias",),
    is_on=lambda params: bool(params.logit_bias),
    apply=lambda params, candidates, _: logit_bias(candidates, params.logit_bias),
    needs=Needs.ROW,
    adjusts=True,
)
