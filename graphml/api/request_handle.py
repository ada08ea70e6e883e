"""A request of an engine as its caller holds it: tokens as they come, results, the best of several.

Knows streams of tokens; nothing of engines but that a request keeps its own alive.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from graphml.api.prompt_encoder import Prompt
from graphml.api.token_stream import Denoised, Result, SoFar, TokenStream
from graphml.api.tokens import Token
from graphml.errors import UsageError
from graphml.options.argument_checks import seed_or_random
from graphml.other_attributes import NamesOthers
from graphml.runtime.blocks.sequence import Sequence as RunningSequence
from graphml.sampling import SamplingParams

SCORES = ("mean", "sum")
"""How continuations are compared: by the mean or the sum of their tokens' log-probabilities."""


class Steers(Protocol):
    """A `StepLoop`."""

    def cancel(self, sequences: Sequence[RunningSequence]) -> None:
        """End sequences before the next step."""

    def between_steps(self, call: Callable[[], bool]) -> bool:
        """The result of a call that is made between two steps."""
        ...


class Submits(Protocol):
    """An `Engine`."""

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        max_tokens: int | None = None,
        seed: int | None = None,
        **sampling: Any,
    ) -> Handle:
        """A request."""


class Handle(NamesOthers):
    """A request: its tokens as they come, each with the `index` of its sequence, and its results.

    `for` and `async for` both give each `Token`; its text is `token.piece`. `await` gives the first `Result`.
    sequences: what the engine computes for it; they are the engine's, and others only look at them.
    """

    _instead: ClassVar = {
        "()": "result()", "text": "result().text", "tokens": "result().tokens", "outputs": "results()",
        "stream": "for token in handle",
    }  # fmt: skip
    _same: ClassVar = {"wait": "result", "get": "result", "abort": "cancel"}

    def __init__(
        self,
        engine: object,
        sequences: tuple[RunningSequence, ...],
        loop: Steers,
        stream: TokenStream,
    ) -> None:
        self._engine = engine  # which ends when nobody holds it
        self.sequences = sequences
        self._loop, self._stream = loop, stream

    def __iter__(self) -> Iterator[Token]:
        yield from self._stream  # and hold this handle meanwhile

    async def __aiter__(self) -> AsyncIterator[Token]:
        async for token in self._stream:
            yield token

    def __await__(self) -> Generator[Any, None, Result]:
        """What its first sequence became, once all have ended, as `result` returns it."""
        return self._ended().__await__()

    async def _ended(self) -> Result:
        async for _ in self._stream:
            pass
        return self.result()

    async def prompt_progress(self) -> AsyncIterator[tuple[int, int]]:
        """While its prompt is computed: number of a sequence, and how many ids of the prompt are computed."""
        async for index, count in self._stream.prompt_progress():
            yield index, count

    async def with_denoised(self) -> AsyncIterator[Token | Denoised]:
        """Its tokens, and after each step of a diffusion model a `Denoised`, the answer so far."""
        async for item in self._stream.with_denoised():
            yield item

    def __repr__(self) -> str:
        return f"Handle({'ended' if self.done else 'running'}, {self._stream.n_tokens} tokens so far)"

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._stream.done

    def so_far(self, index: int, n_gen: int | None = None) -> SoFar:
        """Counts and seconds of a sequence now, or when `n_gen` of its tokens had come."""
        return self._stream.so_far(index, n_gen)

    def cancel(self) -> None:
        """End it before the next step; what it has stays. Nothing, where it has ended."""
        self._loop.cancel(self.sequences)

    def end_reasoning(self) -> bool:
        """Have the reasoning end before the next step, as `SamplingParams.reasoning_budget` ends it.

        Whether any of its sequences was in reasoning that can be ended: messages were submitted with a
        `reasoning_budget`, however large. Waits for a step that is computed; UsageError of a closed engine.
        """

        def end() -> bool:
            return any([*map(RunningSequence.end_reasoning, self.sequences)])

        return not self.done and self._loop.between_steps(end)

    def result(self, timeout: float | None = None) -> Result:
        """What its first sequence became, once all have ended; raises what the request failed with."""
        return self._stream.wait(timeout)[0]

    def best(self, by: str = "mean", timeout: float | None = None) -> Result:
        """The most likely of its sequences, once all have ended: by the mean or the sum of log-probabilities.

        Of equals the first. UsageError for another `by`, and without `logprobs` in the request's params.
        """
        return best_of(self._stream.wait(timeout), by)

    def results(self, timeout: float | None = None) -> list[Result]:
        """What each of its sequences became, in order."""
        return self._stream.wait(timeout)


def best_of(results: Sequence[Result], by: str) -> Result:
    """The most likely of some results; see `Handle.best`."""
    return ranked(results, by)[0]


def ranked(results: Sequence[Result], by: str = "mean") -> list[Result]:
    """Results, the most likely first, equals in their order; arguments and errors as of `Handle.best`."""
    if by not in SCORES:
        raise UsageError(f"by: wanted one of {', '.join(SCORES)}; got {by!r}")
    scores = [result.mean_logprob if by == "mean" else result.cumulative_logprob for result in results]
    known = [score for score in scores if score is not None]
    if len(known) < len(scores):
        raise UsageError("best: wanted params with logprobs (0 or more), by which texts are compared")
    return [results[i] for i in sorted(range(len(known)), key=lambda i: -known[i])]


def generate(
    engine: Submits,
    prompts: Sequence[Prompt],
    params: SamplingParams | Sequence[SamplingParams] | None,
    max_tokens: int | None,
    seed: int | None,
    sampling: Mapping[str, Any],
) -> Iterator[Result]:
    """The results of prompts in their order; params: for all, or each its own; sampling: changes them."""
    each = params if isinstance(params, Sequence) else [params] * len(prompts)
    if len(each) != len(prompts):
        raise UsageError(f"params: wanted one for each of {len(prompts)} prompts; got {len(each)}")
    first = None if seed is None else seed_or_random(seed)
    handles = [
        engine.submit(prompt, params, max_tokens, None if first is None else first + i, **sampling)
        for i, (prompt, params) in enumerate(zip(prompts, each, strict=True))
    ]
    try:
        for handle in handles:
            yield handle.result()
    finally:
        for handle in handles:
            handle.cancel()
