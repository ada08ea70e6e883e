"""Log-probabilities of tokens by rows of logits: of a given token, and of the most likely ones beside it.

Knows logits and candidates; of a vocabulary the bytes of its tokens. Knows no model, session or engine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphml.other_attributes import NamesOthers
from graphml.sampling.candidates.candidates import Candidates, Floats, all_candidates, leading
from graphml.sampling.candidates.moment import SamplerVocabulary

_SAME = {
    **dict.fromkeys(("token", "piece", "decoded_token", "content"), "text"), "token_id": "id",
    **dict.fromkeys(("log_prob", "logprobs"), "logprob"),
}  # fmt: skip
_INSTEAD = dict.fromkeys(("probability", "prob", "p"), "math.exp(token.logprob)")


class _Scored(NamedTuple):
    id: int
    bytes: bytes
    logprob: float


class ScoredToken(NamesOthers, _Scored):
    """A token, its bytes, and the natural logarithm of its probability, which may be -inf."""

    __slots__ = ()
    _same, _instead = _SAME, _INSTEAD

    @property
    def text(self) -> str:
        """Its bytes as text; what is no UTF-8 by itself as U+FFFD."""
        return self.bytes.decode("utf-8", "replace")


@dataclass(frozen=True)
class TokenLogprobs(NamesOthers):
    """How likely a token was: `logprob`, natural logarithms; rank: 1 for the most likely token of all.

    entropy: of the whole distribution, in nats. top: the most likely tokens, as many as were asked for.
    bytes: of the token; empty without a vocabulary. drafted: whether an engine has computed it as a draft,
    which says nothing of how likely it was: equal ones may differ in it.
    """

    _same: ClassVar = {
        **_SAME, **dict.fromkeys(("top_logprobs", "alternatives", "top_candidates"), "top"),
    }  # fmt: skip
    _instead: ClassVar = {**_INSTEAD, "[]": "its attributes: text, id, logprob, rank, entropy, top"}

    id: int
    bytes: bytes
    logprob: float
    rank: int
    entropy: float
    top: tuple[ScoredToken, ...] = ()
    drafted: bool = field(default=False, compare=False)

    @property
    def text(self) -> str:
        """Its bytes as text; what is no UTF-8 by itself as U+FFFD."""
        return self.bytes.decode("utf-8", "replace")


def log_sums(rows: Floats) -> NDArray[np.float64]:
    """float32 [n, n_vocab] -> float64 [n]: the logarithm of the sum of exp(logits) of each row."""
    highest = rows.max(axis=1)
    with np.errstate(over="ignore"):  # two ends of float32's range
        sums = np.exp(rows - highest[:, None]).sum(axis=1, dtype=np.float64)
    log_sum: NDArray[np.float64] = np.log(sums) + highest
    return log_sum


def of_row(row: Floats, token: int, n_top: int, vocabulary: SamplerVocabulary | None = None) -> TokenLogprobs:
    """How likely a token is by its row of logits, float32 [n_vocab], without NaN or +inf."""
    return of_candidates(all_candidates(row), token, n_top, vocabulary)


def of_candidates(
    among: Candidates, token: int, n_top: int, vocabulary: SamplerVocabulary | None = None
) -> TokenLogprobs:
    """How likely a token is among the candidates that a sampler chain leaves; it is one of them."""
    scores, total, entropy = _scores(among)
    at = int(token) if len(among) > token and among.ids[token] == token else _place(among, token)
    own = scores[at]
    order = leading(scores, min(n_top, len(among))) if n_top else ()
    top = tuple(
        ScoredToken(int(among.ids[i]), _bytes(vocabulary, int(among.ids[i])), float(scores[i]) - total)
        for i in order
    )
    rank = 1 + int(np.count_nonzero(scores > own))
    return TokenLogprobs(token, _bytes(vocabulary, token), float(own) - total, rank, entropy, top)


def _scores(among: Candidates) -> tuple[Floats, float, float]:
    """Scores float32 [n], the logarithm of the sum of their exp, and the entropy."""
    scores = among.logits
    if among.p is not None:
        with np.errstate(divide="ignore"):
            scores = np.log(among.p)
    highest = scores.max()
    with np.errstate(over="ignore"):
        shifted = scores - highest
        weights = np.exp(shifted)
    total = float(weights.sum(dtype=np.float64))
    inside = shifted if np.isfinite(scores.min()) else np.where(weights > 0, shifted, 0)
    mean = float(np.dot(weights, inside)) / total
    return scores, math.log(total) + float(highest), max(0.0, math.log(total) - mean)


def _place(among: Candidates, token: int) -> int:
    return int(np.flatnonzero(among.ids == token)[0])


def _bytes(vocabulary: SamplerVocabulary | None, token: int) -> bytes:
    return b"" if vocabulary is None else vocabulary.piece_bytes(token)
