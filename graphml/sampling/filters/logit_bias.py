"""Logit bias: adds a value to the logits of some tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from graphml.errors import UsageError
from graphml.sampling.candidates.candidates import Candidates, in_float32_range
from graphml.sampling.candidates.filter import ChainEntry, Filter, Needs
from graphml.sampling.candidates.moment import Moment
from graphml.sampling.settings.params import SamplingParams


def logit_bias(candidates: Candidates, bias: Mapping[int, float], n_vocab: int) -> Candidates:
    """Add a value to the logits of some tokens. Raises UsageError for an id outside the vocabulary."""
    highest = max(bias, default=-1)
    if highest >= n_vocab:
        raise UsageError(f"logit_bias: wanted token ids below the vocabulary's size {n_vocab}, got {highest}")
    at, there = candidates.positions(np.fromiter(bias.keys(), np.int64, len(bias)))
    added = np.fromiter(bias.values(), np.float32, len(bias))[there]
    logits = candidates.logits.copy()
    with np.errstate(over="ignore"):
        logits[at] = in_float32_range(logits[at] + added, np.isfinite(logits[at]) & np.isfinite(added))
    return candidates.with_logits(logits, is_sorted=False)


def every_bias(candidates: Candidates, biases: Iterable[Sequence[float]]) -> Candidates:
    """Add biases as llama.cpp does: all entries of an id that is at its place, of others the first.

    Candidates that were sorted still count as sorted. Ids that are not there are passed over.
    """
    logits, moved = candidates.logits.copy(), dict[int, float]()
    for biased, bias in biases:
        token = int(biased)
        if 0 <= token < len(candidates) and candidates.ids[token] == token:
            logits[token] += np.float32(bias)
        else:
            moved.setdefault(token, float(bias))
    if moved:
        at, there = candidates.positions(np.fromiter(moved.keys(), np.int64, len(moved)))
        logits[at] += np.fromiter(moved.values(), np.float32, len(moved))[there]
    return candidates.with_logits(logits, candidates.is_sorted)


def _in_llama_cpp(params: SamplingParams, candidates: Candidates, _: Moment) -> Candidates:
    biases = params.logit_bias
    pairs: Iterable[Sequence[float]] = biases.items() if isinstance(biases, Mapping) else biases
    return every_bias(candidates, pairs)


FILTER = Filter(
    name="logit_bias",
    params_read=("logit_bias",),
    is_on=lambda params: bool(params.logit_bias),
    apply=lambda params, candidates, moment: logit_bias(candidates, params.logit_bias, moment.n_vocab),
    needs=Needs.ROW,
    place=10,
    always=True,
    adjusts=True,
    with_mirostat=True,
    entries=(ChainEntry("logit_bias", {"bias": "logit_bias"}, apply=_in_llama_cpp),),
)
