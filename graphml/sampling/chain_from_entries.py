"""`chain`: samplers in any order as a list of entries, with llama.cpp's rules and random numbers.

For comparing, research and tools; sessions and engines sample by `SamplingParams`. Knows entries and how
samplers follow each other; what a sampler does is in its file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphml.errors import UsageError, did_you_mean
from graphml.options.argument_checks import items_of, mapping_of, text_of, token_id, whole_number
from graphml.sampling.candidates.candidates import Candidates, Floats, Ids, all_candidates, softmax
from graphml.sampling.candidates.filter import Apply, ChainEntry, Filter
from graphml.sampling.candidates.mersenne_twister import MersenneTwister
from graphml.sampling.candidates.moment import Moment, SamplerVocabulary
from graphml.sampling.candidates.random_numbers import DIST
from graphml.sampling.chain.filter_order import CHAIN
from graphml.sampling.chain.sampler import as_llama_cpp, by_number
from graphml.sampling.settings.params import LLAMA_CPP, SamplingParams
from graphml.sampling.structured import grammar
from graphml.sampling.structured.opened_tokens import AnyVocabulary, opened_vocabulary

_KNOWN = ("grammar", "root", "lazy", "trigger_patterns", "trigger_tokens")


class GrammarStep:
    """One grammar, and what its matcher has accepted."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    @staticmethod
    def made(name: str, entry: Mapping[str, Any], vocabulary: SamplerVocabulary | None) -> GrammarStep:
        """The step of an entry; UsageError naming what is wrong with it."""
        unknown = [key for key in entry if key not in _KNOWN]
        if unknown:
            raise UsageError(f"{name}: grammar: wanted parameters of {', '.join(_KNOWN)}; got {unknown[0]!r}")
        if vocabulary is None:
            raise UsageError(f"{name}: grammar: wanted vocab, whose tokens have texts; got None")
        more = {key: entry[key] for key in _KNOWN[2:] if key in entry}
        return GrammarStep(
            grammar(entry.get("grammar", ""), root=entry.get("root", "root"), vocab=vocabulary, **more)
        )

    def copy(self, _: object) -> GrammarStep:
        """Another one that goes on the same way."""
        return GrammarStep(self._matcher.copy())

    def run(self, candidates: Candidates, _: Moment) -> tuple[Candidates, int | None]:
        """Forbid (-inf) what the grammar does not allow."""
        allowed = np.asarray(self._matcher.allowed(candidates.ids), np.bool_)
        logits = np.where(allowed, candidates.logits, np.float32(-np.inf))
        return candidates.with_logits(logits, candidates.is_sorted), None

    def accept(self, token: int) -> None:
        """Go on with a token."""
        self._matcher.accept(token)


_BY_TYPE: dict[str, tuple[Filter, ChainEntry]] = {
    entry.type: (filter_, entry) for filter_ in CHAIN for entry in filter_.entries
}
GREEDY, GRAMMAR = "greedy", "grammar"


@dataclass(frozen=True, eq=False)
class ChainCandidates:
    """A step of a chain. ids int32 [n] and logits float32 [n] of the candidates left, in the chain's order.

    p: their probabilities float32 [n], None unless the last sampler makes them. token: the sampled id, None
    without a sampler that samples, and where no candidate is possible.
    """

    ids: Ids
    logits: Floats
    p: Floats | None
    token: int | None


class _Numbers:
    """The random numbers of one sampler: its own generator, or that of the whole chain."""

    def __init__(self, twister: MersenneTwister | None, shared: np.random.Generator) -> None:
        self._twister, self._shared = twister, shared

    def copy(self, shared: np.random.Generator) -> _Numbers:
        return _Numbers(None if self._twister is None else self._twister.copy(), shared)

    def chance(self) -> float:
        return self._shared.random() if self._twister is None else self._twister.single()

    def choose(self, candidates: Candidates, discrete: bool) -> int:
        if self._twister is None:
            return by_number(candidates.logits, self._shared.random())
        return as_llama_cpp(candidates, self._twister, discrete)


class _Step:
    """A filter in a chain, with its params and the state of one sequence."""

    def __init__(self, filter_: Filter, entry: ChainEntry, params: SamplingParams, numbers: _Numbers) -> None:
        self.one, self.params, self.numbers = filter_, params, numbers
        self.apply: Apply = entry.apply or filter_.apply
        self.is_on = (entry.is_on or filter_.is_on)(params)
        self.state = () if filter_.keeps is None else filter_.keeps.start(params)
        self._pending: tuple[int, tuple[float, ...]] | None = None

    def copy(self, shared: np.random.Generator) -> _Step:
        copied = object.__new__(_Step)
        copied.__dict__.update(self.__dict__, numbers=self.numbers.copy(shared))
        return copied

    def run(self, candidates: Candidates, moment: Moment) -> tuple[Candidates, int | None]:
        """The candidates that it leaves, and the position of the one that it samples, if it does."""
        if not self.is_on:
            return candidates, None
        moment.state, moment.chance = self.state, self.numbers.chance
        after = self.apply(self.params, candidates, moment)
        if not self.one.selects:
            return after, None
        at = self.numbers.choose(after, discrete=True)
        keeps = self.one.keeps
        if keeps is not None:
            before = int(np.flatnonzero(candidates.ids == after.ids[at])[0])
            state = keeps.after(self.params, self.state, candidates, after, (before, at))
            if keeps.on_accept:
                self._pending = int(after.ids[at]), state
            else:
                self.state = state
        return after, at

    def accept(self, token: int) -> None:
        if self._pending is not None and self._pending[0] == token:
            self.state = self._pending[1]
        self._pending = None


class _Selector:
    """`dist` or `greedy`: samples from what is left, and changes nothing."""

    def __init__(self, kind: str, numbers: _Numbers) -> None:
        self.kind, self.numbers = kind, numbers

    def copy(self, shared: np.random.Generator) -> _Selector:
        return _Selector(self.kind, self.numbers.copy(shared))

    def run(self, candidates: Candidates, _: Moment) -> tuple[Candidates, int | None]:
        if self.kind == GREEDY:
            return candidates, int(np.argmax(candidates.logits))
        return candidates, self.numbers.choose(candidates, discrete=False)

    def accept(self, token: int) -> None:
        """It keeps nothing."""


class Chain:
    """Samplers in order and the state of one sequence; see `chain`."""

    def __init__(
        self,
        steps: Sequence[_Step | _Selector | GrammarStep],
        shared: np.random.Generator,
        n_vocab: int,
        vocabulary: SamplerVocabulary | None,
    ) -> None:
        self._steps, self._shared = list(steps), shared
        self._n_vocab, self._vocabulary = n_vocab, vocabulary
        self._history: list[int] = []

    def draw(self, logits: Floats) -> ChainCandidates:
        """Run the samplers over logits, float32 [n_vocab], which are not changed.

        The token that is sampled is not accepted. UsageError for other shapes, NaN or +inf.
        """
        row = np.asarray(logits)
        if row.shape != (self._n_vocab,) or row.dtype.kind != "f":
            raise UsageError(f"logits: wanted float32 [{self._n_vocab}], got {row.dtype} {list(row.shape)}")
        if not row.max() < math.inf:
            raise UsageError("logits: wanted numbers below infinity, got NaN or +inf")
        candidates = all_candidates(row.astype(np.float32, copy=False))
        at, p, moment = None, None, Moment(self._history, self._n_vocab, vocabulary=self._vocabulary)
        for step in self._steps:
            if not candidates.logits.max() > -math.inf:
                return ChainCandidates(candidates.ids, candidates.logits, None, None)
            candidates, chosen = step.run(candidates, moment)
            p = candidates.p
            if chosen is not None:
                at, p = int(candidates.ids[chosen]), None if _greedy(step) else softmax(candidates)
        return ChainCandidates(candidates.ids, candidates.logits, p, at)

    def accept(self, token: int) -> None:
        """Append a token to the history, of the prompt or sampled, and tell every sampler."""
        accepted = token_id(token)
        self._history.append(accepted)
        for step in self._steps:
            step.accept(accepted)

    def copy(self) -> Chain:
        """Another one that goes on the same way, independent of this one."""
        shared = np.random.default_rng()
        shared.bit_generator.state = self._shared.bit_generator.state
        copied = Chain([step.copy(shared) for step in self._steps], shared, self._n_vocab, self._vocabulary)
        copied._history = list(self._history)
        return copied


def chain(
    entries: Sequence[Mapping[str, Any]],
    seed: int = 0,
    *,
    n_vocab: int,
    vocab: AnyVocabulary | None = None,
    rng: str = LLAMA_CPP,
) -> Chain:
    """Make a chain of samplers, such as `[{"type": "top_k", "k": 40}, {"type": "dist"}]`.

    Types: those of the filters' files, `dist`, `greedy` and `grammar`. A parameter that is left out has the
    default of its `SamplingParams` field. n_vocab: logits of a row. vocab: a tokenizer, or the path of a GGUF
    file, for samplers that read texts. rng: `llama.cpp` gives every sampler a generator of its own, all by
    the same seed, as there; `graphml` draws all numbers from `np.random.default_rng(seed)`. Raises UsageError
    naming the entry and the parameter.
    """
    if rng not in ("graphml", LLAMA_CPP):
        raise UsageError(f"rng: wanted graphml or {LLAMA_CPP}; got {rng!r}")
    count, number = whole_number(n_vocab), whole_number(seed)
    if count is None or count < 1:
        raise UsageError(f"n_vocab: wanted a whole number of at least 1, got {n_vocab!r}")
    if number is None or number < 0:
        raise UsageError(f"seed: wanted a whole number of at least 0, got {seed!r}")
    vocabulary = None if vocab is None else opened_vocabulary(vocab)
    shared = np.random.default_rng(number)
    steps = []
    for i, entry in enumerate(items_of("entries", entries, "a list of {'type': ...}")):
        numbers = _Numbers(MersenneTwister(number) if rng == LLAMA_CPP else None, shared)
        steps.append(_made(f"entries[{i}]", entry, numbers, vocabulary))
    return Chain(steps, shared, count, vocabulary)


def _made(
    name: str, listed: object, numbers: _Numbers, vocabulary: SamplerVocabulary | None
) -> _Step | _Selector | GrammarStep:
    parameters = dict(mapping_of(name, listed, "a mapping such as {'type': 'top_k', 'k': 40}"))
    kind = text_of(f"{name}: type", parameters.pop("type", None))
    if kind == GRAMMAR:
        return GrammarStep.made(name, parameters, vocabulary)
    if kind in (DIST, GREEDY):
        _check_known(name, kind, parameters, ())
        return _Selector(kind, numbers)
    if kind not in _BY_TYPE:
        known = sorted({*_BY_TYPE, DIST, GREEDY, GRAMMAR})
        raise UsageError(
            f"{name}: wanted a type of {', '.join(known)}; got {kind!r}.{did_you_mean(kind, known)}"
        )
    filter_, entry = _BY_TYPE[kind]
    _check_known(name, kind, parameters, entry.fields)
    values = {entry.fields[key]: _value(f"{name}: {kind}: {key}", value) for key, value in parameters.items()}
    params = SamplingParams.unchecked(**{**entry.defaults, **values})
    step = _Step(filter_, entry, params, numbers)
    if step.is_on and vocabulary is None and filter_.needs_vocabulary(params):
        raise UsageError(f"{name}: {kind}: wanted vocab, whose tokens have texts; got None")
    return step


def _check_known(name: str, kind: str, entry: Mapping[str, Any], known: Any) -> None:
    for key in entry:
        if key not in known:
            raise UsageError(
                f"{name}: {kind}: wanted parameters of {', '.join(known) or 'none'}; got {key!r}"
            )


def _value(name: str, value: Any) -> Any:
    """Numbers as they are; pairs of an id and a bias, which may be the text "-inf", as numbers."""
    if isinstance(value, (bool, str)) or value is None:
        raise UsageError(f"{name}: wanted a number or a list, got {value!r}")
    if callable(value):
        return value
    if not isinstance(value, (list, tuple, Mapping)):
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise UsageError(f"{name}: wanted a number, got {value!r}") from None
        if number != number:
            raise UsageError(f"{name}: wanted a number, got NaN")
        return value
    if name.endswith(": bias"):
        return _biases(name, value)
    return tuple(value)


def _biases(name: str, value: Any) -> list[tuple[int, float]]:
    pairs = list(value.items()) if isinstance(value, Mapping) else list(value)
    try:
        token_biases = [(token_id(token), float(bias)) for token, bias in pairs]
    except (TypeError, ValueError):
        raise UsageError(
            f"{name}: wanted pairs of an id and a number or '-inf', got {value!r:.200}"
        ) from None
    if not all(bias < math.inf for _, bias in token_biases):
        raise UsageError(f"{name}: wanted numbers below infinity, got {value!r:.200}")
    return token_biases


def _greedy(step: object) -> bool:
    return isinstance(step, _Selector) and step.kind == GREEDY
