"""Penalties: lower the logits of tokens that the history has, by repetition, presence and frequency."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphml.sampling.candidates.candidates import Candidates, in_float32_range
from graphml.sampling.candidates.filter import ChainEntry, Filter, Needs
from graphml.sampling.candidates.moment import Moment
from graphml.sampling.settings.params import SamplingParams


def penalties(
    candidates: Candidates,
    history: Sequence[int],
    last_n: int,
    repeat: float,
    presence: float,
    frequency: float,
) -> Candidates:
    """Lower the logits of tokens among the last `last_n` of the history (-1: of all of it).

    Ids of the history that are no candidates are passed over.
    """
    window = history if last_n < 0 else history[max(0, len(history) - last_n) :]
    tokens, counts = np.unique(np.asarray(window, dtype=np.int64), return_counts=True)
    at, known = candidates.positions(tokens)
    counts = counts[known].astype(np.float32)
    logits = candidates.logits.copy()
    seen = logits[at]
    finite = np.isfinite(seen)
    factor = np.float32(repeat)
    with np.errstate(over="ignore"):
        seen = in_float32_range(np.where(seen <= 0, seen * factor, seen / factor), finite)
        taken = in_float32_range(counts * np.float32(frequency), True)
        taken = in_float32_range(taken + np.float32(presence), True)
        logits[at] = np.where(finite, in_float32_range(seen - taken, finite), logits[at])
    return candidates.with_logits(logits, is_sorted=False)


def _apply(params: SamplingParams, candidates: Candidates, moment: Moment) -> Candidates:
    return penalties(
        candidates,
        moment.history,
        last_n=params.repeat_last_n,
        repeat=params.repeat_penalty,
        presence=params.presence_penalty,
        frequency=params.frequency_penalty,
    )


FILTER = Filter(
    name="penalties",
    params_read=("repeat_penalty", "presence_penalty", "frequency_penalty", "repeat_last_n"),
    is_on=lambda params: params.penalised,
    apply=_apply,
    needs=Needs.HISTORY,
    place=20,
    adjusts=True,
    entries=(
        ChainEntry(
            "penalties",
            {
                "last_n": "repeat_last_n",
                "repeat": "repeat_penalty",
                "freq": "frequency_penalty",
                "present": "presence_penalty",
            },
            is_on=lambda params: params.penalised and params.repeat_last_n > 0,
        ),
    ),
)
