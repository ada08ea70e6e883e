"""The steps of the sampler chain: each a pure function from candidates and settings to candidates.

Meaning as in llama.cpp (src/llama-sampler.cpp); where that leaves the order of equal logits open, the lower
token id comes first. Knows nothing of `SamplingParams`, of the order of the steps or of drawing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from graphml.errors import UsageError
from graphml.sampling.candidates import Candidates, Floats, leading, shortest_prefix, softmax


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
        logits[ids] = _in_range(logits[ids] + added, np.isfinite(logits[ids]) & np.isfinite(added))
    return candidates.with_logits(logits, is_sorted=False)


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
        seen = _in_range(np.where(seen <= 0, seen * factor, seen / factor), finite)
        taken = _in_range(counts * np.float32(frequency), True)
        taken = _in_range(taken + np.float32(presence), True)
        logits[tokens] = _in_range(seen - taken, finite)
    return candidates.with_logits(logits, is_sorted=False)


def _in_range(values: Floats, finite: NDArray[np.bool_] | bool) -> Floats:
    """What came of finite numbers stays finite, at the end of float32's range; -inf stays forbidden."""
    limit = np.finfo(np.float32).max
    return np.where(finite, np.clip(values, -limit, limit), values)


def top_k(candidates: Candidates, k: int) -> Candidates:
    """Keep the k highest logits, highest first."""
    k = min(k, len(candidates))
    if candidates.is_sorted:
        return candidates.head(k)
    return candidates.take(leading(candidates.logits, k), is_sorted=True)


def typical(candidates: Candidates, p: float, min_keep: int) -> Candidates:
    """Keep the tokens whose surprise is nearest to the entropy, until they together exceed p.

    Locally typical sampling, Meister et al. 2022. Returned nearest first, so no longer sorted by logit.
    """
    probabilities = softmax(candidates)
    with np.errstate(divide="ignore"):
        surprise = -np.log(probabilities)
    # A token of probability 0 adds nothing to the entropy (0 * inf would be NaN) and is the least typical.
    possible = probabilities > 0
    entropy = np.sum(probabilities[possible] * surprise[possible], dtype=np.float32)
    nearness = -np.abs(surprise - entropy)
    kept = shortest_prefix(nearness, probabilities, p, min_keep, beyond=True)
    return candidates.take(kept, is_sorted=False)


def top_p(candidates: Candidates, p: float, min_keep: int) -> Candidates:
    """Keep the fewest tokens, most likely first, that together reach p.

    Nucleus sampling, Holtzman et al. 2020.
    """
    probabilities = softmax(candidates)
    if candidates.is_sorted:
        running = np.cumsum(probabilities, dtype=np.float32)
        needed = int(np.searchsorted(running, np.float32(p))) + 1
        return candidates.head(max(needed, min_keep))
    kept = shortest_prefix(candidates.logits, probabilities, p, min_keep)
    return candidates.take(kept, is_sorted=True)


def min_p(candidates: Candidates, p: float, min_keep: int) -> Candidates:
    """Keep tokens at least p times as likely as the most likely one."""
    logits = candidates.logits
    lowest = logits.max() + np.float32(math.log(p))
    kept = np.flatnonzero(logits >= lowest)
    if len(kept) >= min_keep:
        return candidates.take(kept, candidates.is_sorted)
    return top_k(candidates, min_keep)


def temperature(candidates: Candidates, value: float) -> Candidates:
    """Divide the logits by the temperature; at 0 only the highest logit stays."""
    if value <= 0.0:
        best = int(np.argmax(candidates.logits))
        return Candidates(candidates.ids[best : best + 1], candidates.logits[best : best + 1], is_sorted=True)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        scaled = candidates.logits / np.float32(value)
    if not np.isfinite(scaled.max()):
        # So cold that the highest logit leaves float32's range: what is left is the greedy choice.
        return temperature(candidates, 0.0)
    return candidates.with_logits(scaled, candidates.is_sorted)


def dynamic_temperature(candidates: Candidates, value: float, spread: float, exponent: float) -> Candidates:
    """Divide the logits by a temperature from value - spread to value + spread that grows with the entropy.

    The entropy counts relative to the highest that so many candidates can have, to the power `exponent`.
    """
    if len(candidates) <= 1:
        return candidates
    probabilities = softmax(candidates)
    possible = probabilities[probabilities > 0]
    entropy = float(-np.sum(possible * np.log(possible), dtype=np.float32))
    relative = max(0.0, entropy) / math.log(len(candidates))
    low, high = max(0.0, value - spread), value + spread
    return temperature(candidates, low + (high - low) * relative**exponent)
