"""DRY, don't repeat yourself (p-e-w 2024, text-generation-webui #5677): lowers tokens that repeat text.

A token is lowered by multiplier * base ^ (r - allowed length), where r is the length of the longest end of
the history that occurred before, followed by this token. Repetitions do not reach across breakers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from graphml.sampling.candidates.candidates import Candidates, Indices
from graphml.sampling.candidates.filter import ChainEntry, Filter, Needs
from graphml.sampling.candidates.moment import Moment, SamplerVocabulary
from graphml.sampling.candidates.token_texts import Breakers, breakers_of
from graphml.sampling.settings.params import SamplingParams

NO_BREAKERS = Breakers({})
_LARGEST_EXPONENT = 88.7228391
"""The logarithm of float32's largest number."""
_ROUNDS = 128
"""Tokens by which all repetitions are compared at once; longer ones are rare, or made to keep others."""


def repeats(window: Indices, limit: int, least: int, most: int) -> tuple[Indices, Indices]:
    """Tokens that would go on with a repetition of the window's end, each once; and its length.

    limit: no repetition is longer; least: shorter ones are passed over; most: longer ones count as this long.
    Ids int64 [n], lengths int64 [n].
    """
    longest_first = min(limit, most)
    ends = np.flatnonzero(window[:-1] == window[-1])
    lengths = np.zeros(len(window), np.int64)
    length, size = 0, len(window)
    while len(ends) and length < longest_first:
        if length == _ROUNDS:
            return _by_token(window, np.minimum(_common_ends(window), longest_first), least)
        lengths[ends] = length = length + 1
        ends = ends[ends >= length]
        ends = ends[window[ends - length] == window[size - 1 - length]]
    return _by_token(window, lengths, least)


def _common_ends(window: Indices) -> Indices:
    """For each token how long the text up to it and the whole text end alike: the Z algorithm, O(n)."""
    text = window[::-1].tolist()
    size = len(text)
    same, left, right = [0] * size, 0, 0
    for i in range(1, size):
        count = min(right - i, same[i - left]) if i < right else 0
        while i + count < size and text[count] == text[i + count]:
            count += 1
        if i + count > right:
            left, right = i, i + count
        same[i] = count
    return np.array(same[::-1], np.int64)


def _by_token(window: Indices, lengths: Indices, least: int) -> tuple[Indices, Indices]:
    """The tokens behind these ends, each once, with the longest of its lengths."""
    before = np.flatnonzero(lengths[:-1] >= least)
    tokens, places = np.unique(window[before + 1], return_inverse=True)
    longest = np.zeros(len(tokens), np.int64)
    np.maximum.at(longest, places, lengths[before])
    return tokens, longest


def dry(
    candidates: Candidates,
    window: Sequence[int],
    multiplier: float,
    base: float,
    allowed_length: int,
    breakers: Breakers,
) -> Candidates:
    """Lower tokens that would repeat what the window, the end of the history, has before."""
    if len(window) <= max(allowed_length, 0):
        return candidates
    array = np.asarray(window, np.int64)
    limit = breakers.limit(array)
    if limit < allowed_length:
        return candidates
    highest = math.floor(_LARGEST_EXPONENT / math.log(base)) if base > 1.000001 else len(window)
    tokens, lengths = repeats(array, limit, allowed_length, allowed_length + max(highest, 0))
    goes_on = ~breakers.alone(tokens)
    tokens, lengths = tokens[goes_on], lengths[goes_on]
    logits = candidates.logits.copy()
    at, there = candidates.positions(tokens)
    penalty = np.float32(multiplier) * np.power(float(base), lengths[there] - allowed_length)
    with np.errstate(over="ignore"):
        lowered = logits[at].astype(np.float64) - penalty
        limits = np.finfo(np.float32)
        finite = np.isfinite(logits[at])
        logits[at] = np.where(finite, np.clip(lowered, limits.min, limits.max), logits[at])
    return candidates.with_logits(logits, is_sorted=False)


def _breakers(params: SamplingParams, moment: Moment) -> Breakers:
    ids = getattr(params, "dry_breaker_ids", None)
    if ids is not None:
        breakers: dict[int, list[tuple[int, ...]]] = {}
        for head, *tail in ids:
            breakers.setdefault(int(head), []).append(tuple(map(int, tail)))
        return Breakers(breakers)
    if not params.dry_sequence_breakers:
        return NO_BREAKERS
    prepared: Breakers | None = moment.prepared.get("dry")
    return prepared or _prepared(params, moment.words("dry_sequence_breakers"))


def _prepared(params: SamplingParams, vocabulary: SamplerVocabulary) -> Breakers:
    return breakers_of(vocabulary, tuple(params.dry_sequence_breakers))


def _apply(params: SamplingParams, candidates: Candidates, moment: Moment) -> Candidates:
    last_n, history = params.dry_penalty_last_n, moment.history
    window = history[max(0, len(history) - last_n) :] if last_n >= 0 else history
    return dry(
        candidates,
        window,
        params.dry_multiplier,
        params.dry_base,
        params.dry_allowed_length,
        _breakers(params, moment),
    )


def _fields() -> Mapping[str, str]:
    own = {"breakers": "dry_sequence_breakers", "breaker_ids": "dry_breaker_ids"}
    same = {"last_n": "dry_penalty_last_n", "allowed_length": "dry_allowed_length"}
    return {"multiplier": "dry_multiplier", "base": "dry_base", **same, **own}


def _on(params: SamplingParams) -> bool:
    return params.dry_multiplier != 0.0 and params.dry_base >= 1.0 and params.dry_penalty_last_n != 0


FILTER = Filter(
    name="dry",
    params_read=(
        "dry_multiplier",
        "dry_base",
        "dry_allowed_length",
        "dry_penalty_last_n",
        "dry_sequence_breakers",
    ),
    is_on=_on,
    apply=_apply,
    needs=Needs.HISTORY,
    needs_vocabulary=lambda params: bool(params.dry_sequence_breakers),
    prepare=_prepared,
    place=30,
    adjusts=True,
    entries=(
        ChainEntry(
            "dry",
            _fields(),
            is_on=lambda params: _on(params) and params.dry_penalty_last_n > 0,
            defaults={"dry_sequence_breakers": ()},
        ),
    ),
)
