"""Infill (llama.cpp #9896): ends a text that fills a gap early, and merges tokens that begin alike."""

from __future__ import annotations

import numpy as np

from graphml.sampling.candidates.candidates import Candidates, softmax
from graphml.sampling.candidates.filter import ChainEntry, Filter, Needs
from graphml.sampling.candidates.moment import Moment, SamplerVocabulary
from graphml.sampling.candidates.token_texts import texts_of
from graphml.sampling.settings.params import SamplingParams

LEAST = np.float32(0.2)


def infill(candidates: Candidates, vocabulary: SamplerVocabulary) -> Candidates:
    """Keep the tokens that end a generation where they are likely, else likely texts; highest logit first.

    A token whose text another one begins with is merged with it: the likelier has both probabilities, which
    are in `p`. Where no text is left, the token that ends the turn is the only one.
    """
    ordered = candidates.by_logit()
    p, ends = softmax(ordered), np.isin(ordered.ids, list(vocabulary.end_tokens))
    of_ends, of_texts = p[ends].sum(), p[~ends].sum()
    if 3 * of_ends * len(ordered) > of_texts:
        return _kept(ordered, p, ends)
    alive = _merged(ordered, p, vocabulary)
    logits = np.where(alive, ordered.logits, np.float32(-np.inf))
    merged = Candidates(ordered.ids, logits, ordered.is_sorted)
    kept = ends | (p >= LEAST)
    if not (kept & ~ends).any():
        return _the_end(p[kept] if kept.any() else p, vocabulary)
    least = np.float32(1.0 / ((kept & ~ends).sum() + 1))
    shares = p / p[kept].sum()
    return _kept(merged, shares, kept & (ends | (shares >= least)))


def _kept(candidates: Candidates, p: np.ndarray, kept: np.ndarray) -> Candidates:
    return Candidates(
        candidates.ids[kept], candidates.logits[kept], candidates.is_sorted, p[kept] / p[kept].sum()
    )


def _the_end(p: np.ndarray, vocabulary: SamplerVocabulary) -> Candidates:
    end = vocabulary.eot if vocabulary.eot is not None else vocabulary.eos
    assert end is not None
    return Candidates(np.array([end], np.int32), np.ones(1, np.float32), True, p[:1])


def _merged(ordered: Candidates, p: np.ndarray, vocabulary: SamplerVocabulary) -> np.ndarray:
    """Move probabilities in `p`; which tokens are left."""
    texts = texts_of(vocabulary)
    place = {int(token): i for i, token in enumerate(ordered.ids)}
    alive = ordered.logits > -np.inf
    for i, token in enumerate(ordered.ids):
        text = texts.text(int(token))
        if not alive[i] or not text:
            continue
        for j in sorted(
            place[text_token] for text_token in texts.that_begin_with(text).tolist() if text_token in place
        ):
            if j == i or not alive[j]:
                continue
            to, of = (j, i) if p[j] > p[i] else (i, j)
            p[to] += p[of]
            p[of], alive[of] = 0.0, False
            if of == i:
                break
    return alive


def _apply(params: SamplingParams, candidates: Candidates, moment: Moment) -> Candidates:
    return infill(candidates, moment.words("samplers: infill"))


FILTER = Filter(
    name="infill",
    params_read=("samplers",),
    is_on=lambda params: bool(params.samplers),
    apply=_apply,
    needs=Needs.ROW,
    needs_vocabulary=lambda params: True,
    place=145,
    entries=(ChainEntry("infill", {}, is_on=lambda params: True),),
)
