"""Penalties: lower the logits of tokens that the history has, by repetition, presence and frequency."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphml.sampling.candidates import Candidates, in_float32_range
from graphml.sampling.filter import Filter, Needs
from graphml.sampling.params import SamplingParams


def penalties(
    candidates: Candidates,
    history: Sequence[int],
    last_n: int,
    repeat: float,
    presence: float,
    frequency: float,
) -> Candidates:
    """Lower the logits of tokens among the last `last_n` of the history (-1: of all of it).

    Expects the whole vocabulary, in id order. Ids of the history outside of it are passed over.
    """
    window = history if last_n < 0 else history[max(0, len(history) - last_n) :]
    tokens, counts = np.unique(np.asarray(window, dtype=np.int64), return_counts=True)
    known = (tokens >= 0) & (tokens < len(candidates))
    tokens, counts = tokens[known], counts[known].astype(np.float32)
    logits = candidates.logits.copy()
    seen = logits[tokens]
    finite = np.isfinite(seen)
    factor = np.float32(repeat)
    with np.errstate(over="ignore"):
        seen = in_float32_range(np.where(seen <= 0, seen * factor, seen / factor), finite)
        taken = in_float32_range(counts * np.float32(frequency), True)
        taken = in_float32_range(taken + np.float32(presence), True)
        logits[tokens] = in_float32_range(seen - taken, finite)
    return candidates.with_logits(logits, is_sorted=False)


def _apply(params: SamplingParams, candidates: Candidates, history: Sequence[int]) -> Candidates:
    return penalties(
        candidates,
        history,
        last_n=params.penalty_last_n,
        repeat=params.repeat_penalty,
        presence=params.presence_penalty,
        frequency=params.frequency_penalty,
    )


FILTER = Filter(
    name="penalties",
    params_read=("repeat_penalty", "presence_penalty", "frequency_penalty", "penalty_last_n"),
    is_on=lambda params: params.penalised,
    apply=_apply,
    needs=Needs.HISTORY,
    adjusts=True,
)
