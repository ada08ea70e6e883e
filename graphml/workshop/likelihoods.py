"""Log-likelihoods of continuations of contexts, many at a time in an engine's steps.

Contexts that begin with the same ids are computed once, as all prefixes in an engine; of logits there are
only the rows that predict a continuation. Knows models and ids; nothing of texts, tasks or files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from graphml.api.engine import Engine
from graphml.api.model import Model
from graphml.api.request_handle import Handle
from graphml.errors import UsageError

T = TypeVar("T")
Pair = tuple[Sequence[int], Sequence[int]]
"""Ids of a context, at least one, and of what continues it."""
TOGETHER = 32
"""Pairs that run at a time."""
_AHEAD = 4 * TOGETHER  # requests that an engine has, so that steps are full and prefixes are found


@dataclass(frozen=True)
class Likelihood:
    """Of each id of a continuation the logarithm of its probability, and whether none is more probable."""

    logprobs: tuple[float, ...]
    are_top: tuple[bool, ...]

    @property
    def total(self) -> float:
        """The logarithm of the continuation's probability."""
        return sum(self.logprobs)

    @property
    def mean(self) -> float:
        """The same per id; 0 of none."""
        return self.total / max(len(self.logprobs), 1)

    @property
    def is_greedy(self) -> bool:
        """Whether greedy sampling would continue the context so."""
        return all(self.are_top)


def log_likelihoods(model: Model, pairs: Sequence[Pair]) -> Iterator[Likelihood]:
    """How likely each continuation is after its context, in the pairs' order, as they come.

    Logarithms are natural. Pairs that are close to one another in their order share their beginning.
    UsageError for a pair without context, as long as the model's context or longer, or with ids that it has
    not, and for a model that does not predict tokens by those before them.
    """
    architecture = model.executor.architecture
    if not architecture.causal or model.executor.encodes or model.executor.denoises:
        raise UsageError(
            f"{model.path}: in {architecture.name} a text has no probability token by token: wanted a model "
            "that gives each token one by those before it"
        )
    for index, (context, continuation) in enumerate(pairs):
        if not len(context):
            raise UsageError(f"pairs[{index}]: wanted a context of at least one token")
        if (size := len(context) + len(continuation)) >= model.n_ctx:
            raise UsageError(
                f"pairs[{index}]: wanted less than {model.n_ctx} tokens, the model's context; got {size}"
            )
    if not pairs:
        return
    longest = max(len(context) + len(continuation) for context, continuation in pairs)
    count = min(TOGETHER, model.executor.n_batch)
    with model.engine(max_sequences=count, n_ctx=longest + 1) as engine:
        handles = (_submitted(engine, *pair) for pair in pairs)
        for (context, _), handle in zip(pairs, some_ahead(handles), strict=True):
            yield _likelihood(len(context), handle)


def some_ahead(submitted: Iterable[T]) -> Iterator[T]:
    """The same in order: of requests that are submitted as they are iterated, many before the first one."""
    waiting = deque[T]()
    for handle in submitted:
        waiting.append(handle)
        if len(waiting) >= _AHEAD:
            yield waiting.popleft()
    yield from waiting


def _submitted(engine: Engine, context: Sequence[int], continuation: Sequence[int]) -> Handle | None:
    """None for an empty continuation."""
    if not len(continuation):
        return None
    ids = [*context, *continuation]
    return engine.submit(ids, prompt_logprobs=0, max_tokens=0, scores_from=len(context))


def _likelihood(first: int, handle: Handle | None) -> Likelihood:
    scores = [] if handle is None else (handle.result().prompt_logprobs or [])[first:]
    known = [score for score in scores if score is not None]
    assert len(known) == len(scores)
    return Likelihood(tuple(score.logprob for score in known), tuple(score.rank == 1 for score in known))
