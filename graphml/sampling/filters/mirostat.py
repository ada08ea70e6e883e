"""Mirostat (Basu et al. 2021): keeps so many tokens that the surprise of the text stays near to a target."""

from __future__ import annotations

import math

import numpy as np

from graphml.sampling.candidates.candidates import Candidates, Floats, leading, softmax
from graphml.sampling.candidates.filter import ChainEntry, Filter, Needs, State, Stateful
from graphml.sampling.candidates.moment import Moment
from graphml.sampling.filters.top_k import top_k
from graphml.sampling.settings.params import SamplingParams

M = 100
"""How many of the most likely tokens the exponent of Zipf's law is estimated from, as in llama.cpp."""


def mirostat(candidates: Candidates, mu: float, m: int, n_vocab: int, wraps: bool = False) -> Candidates:
    """Keep the k most likely tokens, where k follows from mu and the exponent of Zipf's law.

    wraps: whether a k beyond 32-bit integers is 1, as llama.cpp's is on x86, and not all.
    """
    size, probabilities = len(candidates), softmax(candidates)
    at = np.arange(min(m, size)) if candidates.is_sorted else leading(candidates.logits, min(m, size))
    k = _count(probabilities[at], mu, n_vocab)
    if not k < 2.0**31:
        k = 1 if wraps or k != k else size
    return top_k(candidates, max(1, min(size, int(k))))


def _count(likeliest: Floats, mu: float, n_vocab: int) -> float:
    first = likeliest.astype(np.float64)
    ranks = np.arange(1, len(first))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        steps, falls = np.log((ranks + 1) / ranks), np.log(first[:-1] / first[1:])
        exponent = np.float64((steps * falls).sum()) / (steps * steps).sum()
        over = exponent - 1.0
        return float((over * 2.0**mu / (1.0 - np.float64(n_vocab) ** -over)) ** (1.0 / exponent))


def surprise_after(params: SamplingParams, state: State, kept: Candidates, position: int) -> State:
    """mu, moved against the difference of the sampled token's surprise, in bits, from the target."""
    surprise = -math.log2(max(float(softmax(kept)[position]), 1e-45))
    return (state[0] - params.mirostat_eta * (surprise - params.mirostat_tau),)


KEEPS = Stateful(
    start=lambda params: (2.0 * params.mirostat_tau,),
    after=lambda params, state, _, kept, at: surprise_after(params, state, kept, at[1]),
)
PARAMETERS = {"tau": "mirostat_tau", "eta": "mirostat_eta"}


def _in_llama_cpp(params: SamplingParams, candidates: Candidates, moment: Moment) -> Candidates:
    m = getattr(params, "mirostat_m", M)
    return mirostat(candidates, moment.state[0], m, moment.n_vocab, wraps=True)


FILTER = Filter(
    name="mirostat",
    params_read=("mirostat", "mirostat_tau", "mirostat_eta"),
    is_on=lambda params: params.mirostat == 1,
    apply=lambda params, candidates, moment: mirostat(candidates, moment.state[0], M, moment.n_vocab),
    needs=Needs.STATE,
    place=150,
    always=True,
    keeps=KEEPS,
    selects=True,
    with_mirostat=True,
    entries=(
        ChainEntry(
            "mirostat",
            {**PARAMETERS, "m": "mirostat_m"},
            is_on=lambda params: True,
            apply=_in_llama_cpp,
        ),
    ),
)
