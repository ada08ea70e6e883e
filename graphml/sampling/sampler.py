"""The sampler: settings composed to a chain of steps in llama.cpp's order, and the draw at its end.

Knows the order of the steps and the random draw; each step's meaning is in `filters`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphml.errors import UsageError
from graphml.sampling import filters
from graphml.sampling.candidates import Candidates, Floats, Ids, all_candidates
from graphml.sampling.params import SamplingParams
from graphml.sampling.random_numbers import Foreseen, Numbers
from graphml.sampling.top_k_sampling import Best, drawn_of_row, first_choice

Step: TypeAlias = Callable[[Candidates, Sequence[int]], Candidates]
Filter: TypeAlias = Callable[[Candidates], Candidates]


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
        Greedy params draw nothing from the generator, all others one number per token.
        Raises UsageError for logits of another shape, NaN or +inf among them, or no token left to choose.
        """
        return self._draw(self._last(logits, history), generator)

    def sample_best(self, best: Best, generator: Foreseen) -> int | None:
        """Return what `sample` would of the whole row; None where the best tokens do not tell.

        Then nothing is drawn from the generator.
        """
        if best.drawn is not None:
            token = drawn_of_row(self.params, best, generator.ahead(0))
            if token is not None:
                generator.random()
                return token
        candidates = first_choice(self.params, best)
        if candidates is None:
            return None
        for _, step in self.steps[1:]:
            candidates = step(candidates, ())
        return self._draw(candidates, generator)

    def _draw(self, candidates: Candidates, generator: Numbers) -> int:
        if self.params.greedy:
            return int(candidates.ids[0])
        with np.errstate(over="ignore"):  # two ends of float32's range
            weights = np.exp(candidates.logits - candidates.logits.max())
        running = np.cumsum(weights, dtype=np.float64)
        # Stays below the total, so that a token of probability 0 at the end cannot be met.
        target = min(generator.random() * running[-1], np.nextafter(running[-1], 0.0))
        return int(candidates.ids[np.searchsorted(running, target, side="right")])

    def distribution(self, logits: Floats, history: Sequence[int]) -> tuple[Ids, NDArray[np.float64]]:
        """Return the ids that may be drawn, int32 [n], and their probabilities, float64 [n] with sum 1."""
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
    """Compose the steps that `params` switches on, in llama.cpp's order.

    Logit bias, penalties, top-k, typical, top-p, min-p, temperature. A greedy chain goes from the penalties
    straight to the highest logit: of the filters between only typical could remove it, and there
    temperature 0, which the caller asked for, counts more. llama.cpp differs in that one case.
    """
    adjusting: list[tuple[str, Step]] = []
    if params.logit_bias:
        adjusting.append(("logit_bias", _blind(partial(filters.logit_bias, bias=params.logit_bias))))
    if params.penalised:
        penalise = partial(
            filters.penalties,
            last_n=params.penalty_last_n,
            repeat=params.repeat_penalty,
            presence=params.presence_penalty,
            frequency=params.frequency_penalty,
        )
        adjusting.append(("penalties", penalise))
    choosing = [(name, _blind(step)) for name, step in _choosing(params)]
    return Sampler(params, (*adjusting, *choosing), len(adjusting))


def _choosing(params: SamplingParams) -> list[tuple[str, Filter]]:
    if params.greedy:
        return [("temperature", partial(filters.temperature, value=0.0))]
    steps: list[tuple[str, Filter]] = []
    if params.top_k > 0:
        steps.append(("top_k", partial(filters.top_k, k=params.top_k)))
    if params.typical_p < 1.0:
        steps.append(("typical", partial(filters.typical, p=params.typical_p, min_keep=params.min_keep)))
    if params.top_p < 1.0:
        steps.append(("top_p", partial(filters.top_p, p=params.top_p, min_keep=params.min_keep)))
    if params.min_p > 0.0:
        steps.append(("min_p", partial(filters.min_p, p=params.min_p, min_keep=params.min_keep)))
    if params.dynatemp_range > 0.0:
        dynamic = partial(
            filters.dynamic_temperature,
            value=params.temperature,
            spread=params.dynatemp_range,
            exponent=params.dynatemp_exponent,
        )
        steps.append(("dynamic_temperature", dynamic))
    elif params.temperature != 1.0:
        steps.append(("temperature", partial(filters.temperature, value=params.temperature)))
    return steps


def _blind(step: Filter) -> Step:
    """Give a filter that does not look at the history the form of a step."""
    return lambda candidates, history: step(candidates)


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
