"""Banned strings: forbids the token that would complete a text that must not be generated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphml.sampling.candidates.candidates import Candidates, Indices
from graphml.sampling.candidates.filter import ChainEntry, Filter, Needs
from graphml.sampling.candidates.moment import Moment
from graphml.sampling.candidates.token_texts import texts_of
from graphml.sampling.settings.params import SamplingParams


def completing(moment: Moment, strings: Sequence[str]) -> Indices:
    """The ids of tokens that would complete one of the strings behind the history, int64 [n]."""
    texts = texts_of(moment.words("banned_strings"))
    matches = []
    for string in (encoded.encode() for encoded in strings):
        matches.append(texts.with_inside(string))
        tail = texts.end_of(moment.history, len(string) - 1)
        for known in range(1, min(len(tail) + 1, len(string))):
            if tail.endswith(string[:known]):
                matches.append(texts.that_begin_with(string[known:]))
    return np.unique(np.concatenate(matches)) if matches else np.zeros(0, np.int64)


def _apply(params: SamplingParams, candidates: Candidates, moment: Moment) -> Candidates:
    at, _ = candidates.positions(completing(moment, params.banned_strings))
    logits = candidates.logits.copy()
    logits[at] = -np.inf
    return candidates.with_logits(logits, is_sorted=False)


FILTER = Filter(
    name="banned_strings",
    params_read=("banned_strings",),
    is_on=lambda params: bool(params.banned_strings),
    apply=_apply,
    needs=Needs.HISTORY,
    needs_vocabulary=lambda params: True,
    place=15,
    always=True,
    adjusts=True,
    with_mirostat=True,
    entries=(ChainEntry("banned_strings", {"strings": "banned_strings"}),),
)
