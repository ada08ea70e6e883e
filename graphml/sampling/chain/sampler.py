"""The sampler: the filters that params switch on as a chain of steps, and the random choice at its end.

Knows how steps follow each other; `filter_order` has the filters, and each is in its own file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphml.errors import UsageError
from graphml.sampling.candidates.candidates import Candidates, Floats, Ids, all_candidates, softmax
from graphml.sampling.candidates.filter import Apply, Filter, Stateful
from graphml.sampling.candidates.mersenne_twister import MersenneTwister
from graphml.sampling.candidates.moment import Moment, SamplerVocabulary
from graphml.sampling.candidates.random_numbers import DIST, Numbers, PeekableRandom
from graphml.sampling.candidates.top_k_logits import TopK
from graphml.sampling.chain import filter_order
from graphml.sampling.chain.top_k_sampling import candidates_of_top_k, device_sample
from graphml.sampling.settings.params import LLAMA_CPP, SamplingParams

_Side: TypeAlias = Literal["left", "right"]
Doubles: TypeAlias = NDArray[np.float64]
_BLOCK: Final = 512
_MANY: Final = 8 * _BLOCK
"""From so many candidates on they are summed in blocks: one sum after the other waits for each addition."""


def by_number(logits: Floats, number: float) -> int:
    """The position at which the running sum of exp(logits) passes number, from 0 to 1, of its total."""
    return _position(_weights(logits), number, "right")


def as_llama_cpp(candidates: Candidates, generator: MersenneTwister, discrete: bool) -> int:
    """The position that llama.cpp samples, by its `dist`, or by `std::discrete_distribution`.

    The first uses a number even for a single candidate, the second does not.
    """
    if discrete and len(candidates) == 1:
        return 0
    weights = softmax(candidates) if discrete else _weights(candidates.logits)
    return _position(weights, generator.double(), "left")


def _weights(logits: Floats) -> Floats:
    with np.errstate(over="ignore"):  # two ends of float32's range
        weights: Floats = logits - logits.max()
        np.exp(weights, out=weights)
    return weights


def _position(weights: Floats, share: float, side: _Side) -> int:
    """Where the running sum of weights, float32 [n], reaches (left) or passes (right) a share of all."""
    if len(weights) < _MANY:
        running = np.cumsum(weights, dtype=np.float64)
        return _met(weights, running, _target(share, float(running[-1]), side), side)
    whole = len(weights) // _BLOCK * _BLOCK
    sums = weights[:whole].reshape(-1, _BLOCK).sum(axis=1, dtype=np.float64)
    rest = weights[whole:].sum(dtype=np.float64)
    parts = np.append(sums, rest)
    upto = np.cumsum(parts)
    target = _target(share, float(upto[-1]), side)
    block = min(int(np.searchsorted(upto, target, side=side)), len(upto) - 1)
    first = min(block * _BLOCK, len(weights) - 1)
    inside = weights[first : first + _BLOCK]
    before = float(upto[block - 1]) if block else 0.0
    return first + _met(inside, before + np.cumsum(inside, dtype=np.float64), target, side)


def _target(share: float, total: float, side: _Side) -> float:
    """Below the total where sums must pass it, so that a token of probability 0 at the end is not met."""
    return min(share * total, float(np.nextafter(total, 0.0))) if side == "right" else share * total


def _met(weights: Floats, running: Doubles, target: float, side: _Side) -> int:
    at = int(np.searchsorted(running, target, side=side))
    return at if at < len(running) else int(np.flatnonzero(weights)[-1])


@dataclass(frozen=True)
class _Left:
    """What a filter with a state was given, and what it left of that."""

    one: Filter
    keeps: Stateful
    moment: Moment
    before: Candidates
    after: Candidates


class _ChainRun:
    """One run of a chain: its moments, and what its filters with a state left."""

    def __init__(self, sampler: Sampler, n_vocab: int, history: Sequence[int], numbers: Numbers) -> None:
        self.params, self.history, self.numbers = sampler.params, history, numbers
        self.exact = sampler.params.rng == LLAMA_CPP
        self.own = numbers if isinstance(numbers, PeekableRandom) else PeekableRandom(0)
        self.moment = Moment(history, n_vocab, numbers.random, (), self.own.vocabulary, self.own.prepared)
        self.left: list[_Left] = []

    def step(self, filter_: Filter, apply: Apply, candidates: Candidates) -> Candidates:
        moment, keeps = self.moment, filter_.keeps
        if keeps is None and not self.exact:
            return apply(self.params, candidates, moment)
        moment = replace(moment)
        if self.exact:
            moment.chance = lambda: self.generator(filter_.name).single()
        if keeps is not None:
            moment.state = self.own.kept.at(filter_.name, self.history, keeps.start(self.params))
        after = apply(self.params, candidates, moment)
        if keeps is not None:
            self.left.append(_Left(filter_, keeps, moment, candidates, after))
        return after

    def generator(self, name: str) -> MersenneTwister:
        """llama.cpp's of a sampler."""
        return self.own.kept.generator(name, self.own.seed)

    def choose(self, candidates: Candidates) -> int:
        """The sampled token; behind it the filters have another state."""
        position = self._position(candidates)
        token = int(candidates.ids[position])
        for waiting in self.left:
            at = tuple(int(np.flatnonzero(c.ids == token)[0]) for c in (waiting.before, waiting.after))
            state = waiting.keeps.after(
                self.params, waiting.moment.state, waiting.before, waiting.after, (at[0], at[1])
            )
            self.own.kept.put(waiting.one.name, len(self.history) + 1, token, state)
        return token

    def _position(self, candidates: Candidates) -> int:
        if self.params.greedy:
            return 0
        if not self.exact:
            return by_number(candidates.logits, self.numbers.random())
        last = self.left[-1].one if self.left else None
        generator = self.generator(DIST if last is None else last.name)
        return as_llama_cpp(candidates, generator, discrete=last is not None and last.selects)


@dataclass(frozen=True)
class Sampler:
    """A chain of filters. The first `n_adjusting` change logits, the others choose among them.

    Holds no state: that of a sequence is with its random numbers. The same logits, history, numbers and
    states give the same token.
    """

    params: SamplingParams
    steps: tuple[tuple[Filter, Apply], ...]
    n_adjusting: int

    def prepared(self, vocabulary: SamplerVocabulary | None) -> dict[str, Any]:
        """What its filters work out before a text: `PeekableRandom.prepared`."""
        return {
            filter_.name: filter_.prepare(self.params, vocabulary)
            for filter_, _ in self.steps
            if filter_.prepare is not None and vocabulary is not None
        }

    def sample(self, logits: Floats, history: Sequence[int], generator: Numbers) -> int:
        """Return the id of the next token.

        logits: float32 [n_vocab]; history: ids so far, prompt included, which the penalties look at.
        Greedy params use no number of the generator, all others one per token, and one more for XTC.
        Raises UsageError for logits of another shape, NaN or +inf among them, or no token left to choose.
        """
        if self._is_argmax:
            row = _checked(logits)
            _check_usable(row)
            return int(np.argmax(row))
        run = _ChainRun(self, len(logits), history, generator)
        return run.choose(self._last(logits, run))

    def sample_and_left(
        self, logits: Floats, history: Sequence[int], generator: Numbers
    ) -> tuple[int, Candidates]:
        """The same, and the candidates that the token was chosen from; errors as of `sample`."""
        run = _ChainRun(self, len(logits), history, generator)
        left = self._last(logits, run)
        return run.choose(left), left

    def left(self, logits: Floats, generator: Numbers) -> Candidates:
        """The candidates of which `sample` would choose without a history; errors as of it."""
        return self._last(logits, _ChainRun(self, len(logits), (), generator))

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
        run = _ChainRun(self, top.n_vocab, (), generator)
        for filter_, apply in self.steps[1:]:
            candidates = run.step(filter_, apply, candidates)
        return run.choose(candidates)

    def distribution(
        self, logits: Floats, history: Sequence[int], generator: Numbers | None = None
    ) -> tuple[Ids, NDArray[np.float64]]:
        """Return the ids that may be sampled, int32 [n], and their probabilities, float64 [n] with sum 1.

        generator: of a sequence, for filters that have a state or chances; no state is changed.
        """
        own = generator.copy() if isinstance(generator, PeekableRandom) else generator
        run = _ChainRun(self, len(logits), history, own or PeekableRandom(0))
        candidates = self._last(logits, run)
        weights = np.exp(candidates.logits.astype(np.float64) - float(candidates.logits.max()))
        return candidates.ids, weights / weights.sum()

    def trace(
        self, logits: Floats, history: Sequence[int], generator: Numbers | None = None
    ) -> Iterator[tuple[str, Candidates]]:
        """The candidates as they come in ("logits"), then after each step, with the step's name."""
        seen: list[tuple[str, Candidates]] = []
        self._last(logits, _ChainRun(self, len(logits), history, generator or PeekableRandom(0)), seen)
        return iter(seen)

    @cached_property
    def _is_argmax(self) -> bool:
        """Whether the largest logit is the token, and nothing else decides: the chain is temperature 0."""
        return self.params.greedy and [filter_.name for filter_, _ in self.steps] == ["temperature"]

    @cached_property
    def _adjusts_last(self) -> bool:
        """Whether logits may change behind the check before the first choice."""
        chosen = self.steps[self.n_adjusting :]
        return not chosen or any(filter_.adjusts for filter_, _ in chosen)

    def _last(
        self, logits: Floats, run: _ChainRun, seen: list[tuple[str, Candidates]] | None = None
    ) -> Candidates:
        """The candidates behind the last step; seen: gets those before it, too."""
        candidates = all_candidates(_checked(logits))
        if seen is not None:
            seen.append(("logits", candidates))
        for index, (filter_, apply) in enumerate(self.steps):
            if index == self.n_adjusting:
                _check_usable(candidates.logits)
            candidates = run.step(filter_, apply, candidates)
            if seen is not None:
                seen.append((filter_.name, candidates))
        if self._adjusts_last:
            _check_usable(candidates.logits)
        return candidates


def make_sampler(params: SamplingParams) -> Sampler:
    """Compose the filters that `params` switches on; see `graphml.sampling.chain.filter_order`."""
    on = filter_order.filters_on(params, filter_order.CHAIN)
    steps = tuple((filter_, apply_of(filter_, params)) for filter_ in on)
    adjusting = next((i for i, filter_ in enumerate(on) if not filter_.adjusts), len(on))
    return Sampler(params, steps, adjusting)


def apply_of(filter_: Filter, params: SamplingParams) -> Apply:
    """What the filter does; by llama.cpp's rules where they differ and its numbers are asked for."""
    exact = next((entry.apply for entry in filter_.entries if entry.apply is not None), None)
    return filter_.apply if exact is None or params.rng != LLAMA_CPP or params.greedy else exact


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
