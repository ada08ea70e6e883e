"""The sampler: the filters that params switch on as a chain of steps, and the random choice at its end.

Knows how steps follow each other; `filter_order` has the filters, and each is in its own file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphml.errors import UsageError
from graphml.sampling import filter_order
from graphml.sampling.candidates import Candidates, Floats, Ids, all_candidates
from graphml.sampling.params import SamplingParams
from graphml.sampling.random_numbers import Numbers, PeekableRandom
from graphml.sampling.top_k_logits import TopK
from graphml.sampling.top_k_sampling import candidates_of_top_k, device_sample

Step: TypeAlias = Callable[[Candidates, Sequence[int]], Candidates]


@dataclass(frozen=True)
class Sampler:
    """A chain of named steps. The first `n_adjusting` steps change logits, the others choose among them.

    Holds no state: the same logits, history and generator state give the same token.
    """

    params: SamplingParams
    steps: tuple[tuple[str, Step], ...]
    n_adjusting: int

    def sample(self, logits: Floats, history: Sequence[int], generator: Numbers) -> int:
        """Return the id of the next token.

        logits: float32 [n_vocab]; history: ids so far, prompt included, which the penalties look at.
        Greedy params use no number of the generator, all others one per token.
        Raises UsageError for logits of another shape, NaN or +inf among them, or no token left to choose.
        """
        return self._choose(self._last(logits, history), generator)

    def sample_top_k(self, top: TopK, generator: PeekableRandom) -> int | None:
        """Return what `sample` would of the whole row; None where the top k is not enough to know.

        Then no number of the generator is used.
        """
        if top.sampled is not None:
            token = device_sample(self.params, top, generator.peek(0))
            if token is not None:
                generator.random()
                return token
        candidates = candidates_of_top_k(self.params, top)
        if candidates is None:
            return None
        for _, step in self.steps[1:]:
            candidates = step(candidates, ())
        return self._choose(candidates, generator)

    def _choose(self, candidates: Candidates, generator: Numbers) -> int:
        if self.params.greedy:
            return int(candidates.ids[0])
        with np.errstate(over="ignore"):  # two ends of float32's range
            weights = np.exp(candidates.logits - candidates.logits.max())
        running = np.cumsum(weights, dtype=np.float64)
        # Stays below the total, so that a token of probability 0 at the end cannot be met.
        target = min(generator.random() * running[-1], np.nextafter(running[-1], 0.0))
        return int(candidates.ids[np.searchsorted(running, target, side="right")])

    def distribution(self, logits: Floats, history: Sequence[int]) -> tuple[Ids, NDArray[np.float64]]:
        """Return the ids that may be sampled, int32 [n], and their probabilities, float64 [n] with sum 1."""
        candidates = self._last(logits, history)
        weights = np.exp(candidates.logits.astype(np.float64) - float(candidates.logits.max()))
        return candidates.ids, weights / weights.sum()

    def trace(self, logits: Floats, history: Sequence[int]) -> Iterator[tuple[str, Candidates]]:
        """Yield the candidates as they come in ("logits"), then after each step, with the step's name."""
        candidates = all_candidates(_checked(logits))
        yield "logits", candidates
        for index, (name, step) in enumerate(self.steps):
            if index == self.n_adjusting:
                _check_usable(candidates.logits)
            candidates = step(candidates, history)
            yield name, candidates
        if len(self.steps) == self.n_adjusting:
            _check_usable(candidates.logits)

    def _last(self, logits: Floats, history: Sequence[int]) -> Candidates:
        for _, candidates in self.trace(logits, history):
            last = candidates
        return last


def make_sampler(params: SamplingParams) -> Sampler:
    """Compose the filters that `params` switches on; see `graphml.sampling.filter_order`."""
    on = filter_order.filters_on(params, filter_order.CHAIN)
    steps = tuple((one.name, partial(one.apply, params)) for one in on)
    return Sampler(params, steps, sum(one.adjusts for one in on))


def _checked(logits: Floats) -> Floats:
    array = np.asarray(logits)
    if array.ndim != 1 or len(array) == 0 or array.dtype.kind != "f":
        raise UsageError(f"logits: wanted float32 [n_vocab], got {array.dtype} {list(array.shape)}")
    return array.astype(np.float32, copy=False)


def flaw_of(logits: Floats) -> str | None:
    """Why no token can be chosen by these logits; None if one can."""
    highest = logits.max()  # NaN wherever one NaN stands
    if np.isfinite(highest):
        return None
    if np.isnan(highest):
        return f"NaN for token {int(np.flatnonzero(np.isnan(logits))[0])}"
    return f"+inf for token {int(np.argmax(logits))}" if highest > 0 else "-inf for every token"


def _check_usable(logits: Floats) -> None:
    flaw = flaw_of(logits)
    if flaw is None:
        return
    if flaw.startswith("-inf"):
        raise UsageError("logits: every token is forbidden (-inf), none is left to choose")
    raise UsageError(f"logits: wanted finite numbers, got {flaw}")


@lru_cache(maxsize=64)
def sampler_of(params: SamplingParams) -> Sampler:
    """`make_sampler`, for those who ask again at every token."""
    return make_sampler(params)
