"""Candidate tokens of one step as a value, and the arithmetic that several filters share.

Knows ids, logits and order; knows no filter and no setting.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphml.sampling.candidates import score_order

Ids: TypeAlias = NDArray[np.int32]
Floats: TypeAlias = NDArray[np.float32]
Indices: TypeAlias = NDArray[np.int64]

# Few tokens hold nearly all the probability: sorting this many first mostly spares sorting a vocabulary.
FIRST_LOOK = 256
_TINY = np.float32(np.finfo(np.float32).smallest_subnormal)
_MINUS_INF = np.float32(-np.inf).view(np.int32)
ADDED_IN_ORDER = 16384
"""So many float32 numbers at most are added one after the other."""
_SAMPLED = 16
"""Of so many scores one is looked at to guess how low the kept ones reach."""
_SLACK = 1e-5
_GROUP = 64
"""Scores of a group whose highest one tells which scores can be among the highest of all."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """Tokens that may still be sampled: ids int32 [n] and logits float32 [n].

    is_sorted says that the logits are known to fall; of a chain with llama.cpp's rules, that they count as
    sorted. p: probabilities float32 [n] where a filter made them and they are not those of the logits. The
    arrays are never written to: filters make new ones.
    """

    ids: Ids
    logits: Floats
    is_sorted: bool = False
    p: Floats | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, indices: Indices, is_sorted: bool) -> Candidates:
        """Return the candidates at these positions, in this order."""
        every = self.ids is _every_id(len(self))
        ids = indices.astype(np.int32) if every else np.take(self.ids, indices)
        return Candidates(ids, np.take(self.logits, indices), is_sorted)

    def only(self, kept: NDArray[np.bool_]) -> Candidates:
        """Return the candidates of a mask, bool [n], in their order."""
        return Candidates(np.compress(kept, self.ids), np.compress(kept, self.logits), self.is_sorted)

    def forbidding(self, refused: NDArray[np.bool_]) -> Candidates:
        """Return all of them, those of a mask, bool [n], with the logit -inf."""
        return self.with_logits(forbidden(self.logits, refused), self.is_sorted)

    def head(self, count: int) -> Candidates:
        """Return the first `count` candidates."""
        return Candidates(self.ids[:count], self.logits[:count], self.is_sorted)

    def with_logits(self, logits: Floats, is_sorted: bool) -> Candidates:
        """Return the same tokens with other logits."""
        return replace(self, logits=logits, is_sorted=is_sorted, p=None)

    def by_logit(self) -> Candidates:
        """Return all of them, highest logit first."""
        return self if self.is_sorted else self.take(leading(self.logits, len(self)), is_sorted=True)

    def positions(self, tokens: Indices) -> tuple[Indices, NDArray[np.bool_]]:
        """Where these tokens, each at most once, are among the candidates; and which of them are there."""
        if self.ids is _every_id(len(self)):
            there = (tokens >= 0) & (tokens < len(self))
            return tokens[there], there
        order = np.argsort(tokens)
        place = np.minimum(np.searchsorted(tokens, self.ids, sorter=order), len(tokens) - 1)
        own = order[place] if len(tokens) else np.zeros(0, np.int64)
        matched = np.flatnonzero(tokens[own] == self.ids) if len(tokens) else np.zeros(0, np.int64)
        at = np.full(len(tokens), -1, np.int64)
        at[own[matched]] = matched
        there = at >= 0
        return at[there], there


def all_candidates(logits: Floats) -> Candidates:
    """Return every token of the vocabulary as a candidate; logits float32 [n_vocab] are not copied."""
    return Candidates(_every_id(len(logits)), logits)


@lru_cache(maxsize=8)
def _every_id(count: int) -> Ids:
    ids = np.arange(count, dtype=np.int32)
    ids.setflags(write=False)
    return ids


def softmax(candidates: Candidates) -> Floats:
    """Return the probabilities, float32 [n], in the candidates' order."""
    logits = candidates.logits
    highest = logits[0] if candidates.is_sorted else logits.max()
    with np.errstate(over="ignore", invalid="ignore"):  # two ends of float32's range; only counts as sorted
        weights: Floats = logits - highest
        np.exp(weights, out=weights)
        weights /= sum_in_order(weights)
    return weights


def sum_in_order(values: Floats) -> np.float32:
    """The float32 sum of values, float32 [n]; of not many one after the other, as llama.cpp adds them.

    So what hangs on the last bits falls alike. Of many that would take longer than all the rest.
    """
    if len(values) > ADDED_IN_ORDER:
        return np.float32(values.sum(dtype=np.float32))
    return np.float32(np.cumsum(values, dtype=np.float32)[-1]) if len(values) else np.float32(0)


def entropy_of(probabilities: Floats) -> float:
    """Return the entropy in nats of probabilities, float32 [n]; those of 0 add nothing."""
    surprise = np.maximum(probabilities, _TINY)
    np.log(surprise, out=surprise)
    surprise *= probabilities
    return float(-sum_in_order(surprise))


def forbidden(logits: Floats, refused: NDArray[np.bool_]) -> Floats:
    """Return logits, float32 [n], with -inf where the mask, bool [n], is set.

    By bits: NumPy's `where` branches at every number, ten times slower for a mask without a pattern.
    """
    bits = refused.view(np.int8).astype(np.int32)
    np.negative(bits, out=bits)
    kept = logits.view(np.int32) & ~bits
    bits &= _MINUS_INF
    kept |= bits
    return kept.view(np.float32)


def in_float32_range(values: Floats, finite: NDArray[np.bool_] | bool) -> Floats:
    """Return values that came of finite numbers clipped to float32's range; -inf stays forbidden."""
    limit = np.finfo(np.float32).max
    return np.where(finite, np.clip(values, -limit, limit), values)


def leading(scores: Floats, count: int) -> Indices:
    """Return the positions of the `count` >= 1 highest scores, highest first, equal ones by position.

    Takes float32 [n] without NaN. Selects before it sorts.
    """
    size = len(scores)
    if count >= size:
        return score_order.descending(scores)
    near = _reaching(scores, count)
    among = scores if near is None else np.take(scores, near)
    threshold = np.partition(among, len(among) - count)[len(among) - count]
    above = np.flatnonzero(among > threshold)
    equal = np.flatnonzero(among == threshold)[: count - len(above)]
    indices = np.concatenate((above, equal))
    return score_order.descending(scores, indices if near is None else near[indices])


def _reaching(scores: Floats, count: int) -> Indices | None:
    """Positions, rising, of few scores with the `count` highest among them; None where they are not found.

    At least as many scores as groups reach the count-th highest maximum of a group. NumPy finds maxima with
    SIMD, several times as fast as it selects.
    """
    width = len(scores) // _GROUP
    if width < 4 * count:
        return None
    highest = scores[: width * _GROUP].reshape(_GROUP, width).max(axis=0)
    reaching = np.flatnonzero(scores >= np.partition(highest, width - count)[width - count])
    return reaching if len(reaching) < len(scores) // 4 else None


def shortest_prefix(
    scores: Floats, probabilities: Floats, mass: float, min_keep: int, beyond: bool = False
) -> Indices:
    """Return positions, highest score first, of the fewest candidates whose probabilities reach `mass`.

    scores and probabilities are float32 [n]. At least `min_keep` and at least one are kept, all when the mass
    is never reached. With `beyond` the sum has to exceed the mass, not only to reach it. Valid until this
    thread's next call. No more are sorted
    than a guess says: first few, then those down to a score that a sample of them gives, then all.
    """
    side: Literal["left", "right"] = "right" if beyond else "left"
    size = len(scores)
    order = leading(scores, min(FIRST_LOOK, size))
    guesses = iter((lambda: _guessed(scores, probabilities, mass), lambda: leading(scores, size)))
    loops = score_order.compiled(size)
    while True:
        # float32 running sums, one after the other, as llama.cpp has them: a tie at the edge falls alike
        running = np.cumsum(np.take(probabilities, order), dtype=np.float32)
        needed = int(np.searchsorted(running, np.float32(mass), side=side)) + 1
        needed = max(needed, min_keep)
        if needed <= len(order) or len(order) == size:
            return order[: min(needed, size)]
        if loops is not None:  # takes no longer than a guess
            kept: Indices = loops.prefix(scores, probabilities, mass, min_keep, beyond)
            return kept
        order = next(guesses)()


def _guessed(scores: Floats, probabilities: Floats, mass: float) -> Indices:
    """Positions, highest score first, of not many more of the highest scores than reach the mass.

    The borders that are tried are scores of a sample, each reached by a quarter more than the one before.
    """
    some = np.sort(scores[::_SAMPLED])[::-1]
    ranks = np.unique(np.geomspace(1, len(some), 2 + 10 * len(some).bit_length() // 3).astype(np.int64)) - 1

    def reach(i: int) -> NDArray[np.bool_]:
        reaches: NDArray[np.bool_] = scores >= some[ranks[i]]
        return reaches

    low, high = 0, len(ranks) - 1
    while low < high:
        middle = (low + high) // 2
        shares = reach(middle).astype(np.float32)
        shares *= probabilities
        low, high = (low, middle) if shares.sum() > mass + _SLACK else (middle + 1, high)
    return score_order.descending(scores, np.flatnonzero(reach(low)))
