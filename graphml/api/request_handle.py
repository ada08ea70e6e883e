"""A request of an engine as its caller holds it. Made by `Engine.submit`.

Knows tokens and results as they come; nothing of steps, blocks or models.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

from graphml.api.token_stream import Result, TokenStream
from graphml.api.tokens import Token
from graphml.runtime.sequence import Sequence as RunningSequence


class Handle:
    """A request: its tokens as they come, each with the `index` of its sequence, and its results.

    sequences: what the engine computes for it; they are the engine's, and others only look at them.
    """

    def __init__(
        self,
        engine: object,
        sequences: tuple[RunningSequence, ...],
        cancel: Callable[[], None],
        stream: TokenStream,
    ) -> None:
        self._engine = engine  # which ends when nobody holds it
        self.sequences = sequences
        self._cancel, self._stream = cancel, stream

    def __iter__(self) -> Iterator[Token]:
        yield from self._stream  # and hold this handle meanwhile

    async def __aiter__(self) -> AsyncIterator[Token]:
        async for token in self._stream:
            yield token

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._stream.done

    def cancel(self) -> None:
        """End it before the next step; what it has stays. Nothing, where it has ended."""
        self._cancel()

    def result(self, timeout: float | None = None) -> Result:
        """What its first sequence became, once all have ended; raises what the request failed with."""
        return self._stream.wait(timeout)[0]

    def results(self, timeout: float | None = None) -> list[Result]:
        """What each of its sequences became, in order."""
        return self._stream.wait(timeout)
