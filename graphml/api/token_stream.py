"""The tokens of a request as they come: written by one thread, read by any number of threads and event loops.

Knows tokens and results; nothing of engines or models.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from graphml.api.tokens import Token


@dataclass(frozen=True)
class Timings:
    """ttft_s, total_s: seconds from when the request was submitted to its first token, and to its end.

    prompt_tps: computed ids of the prompt per second of ttft_s; gen_tps: tokens after the first per second.
    """

    ttft_s: float = 0.0
    total_s: float = 0.0
    prompt_tps: float = 0.0
    gen_tps: float = 0.0


@dataclass(frozen=True)
class Result:
    """What a sequence became. tokens: generated ids, without the prompt's; text: theirs.

    stop_reason: "end", "stop", "length", "context", "cancel" or "deadline". n_cached: ids of the prompt that
    were not computed, since blocks held them.
    """

    tokens: list[int]
    text: str
    stop_reason: str
    n_prompt: int
    n_cached: int
    n_gen: int
    timings: Timings


class TokenStream:
    """Tokens in the order in which they came, all of them for each reader; and a result for each sequence."""

    def __init__(self, n_sequences: int) -> None:
        self._tokens: list[Token] = []
        self._results: list[Result | None] = [None] * n_sequences
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._readers: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def put(self, token: Token) -> None:
        """One more token."""
        with self._changed:
            self._tokens.append(token)
            self._wake()

    def end(self, index: int, result: Result) -> None:
        """A sequence has ended."""
        with self._changed:
            self._results[index] = result
            self._wake()

    def fail(self, error: BaseException) -> None:
        """The request has failed; readers get the error behind the tokens that were before it."""
        with self._changed:
            self._error = self._error or error
            self._wake()

    @property
    def done(self) -> bool:
        """Whether nothing follows."""
        return self._error is not None or None not in self._results

    def wait(self, timeout: float | None = None) -> list[Result]:
        """The results of all sequences, once they have ended; raises what the request failed with."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.done, timeout):
                raise TimeoutError(f"the request has not ended within {timeout} s")
            if self._error is not None:
                raise self._error
            return [one for one in self._results if one is not None]

    def __iter__(self) -> Iterator[Token]:
        position = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.done or len(self._tokens) > position)  # noqa: B023
                token = self._next(position)
            if token is None:
                return
            position += 1
            yield token

    async def __aiter__(self) -> AsyncIterator[Token]:
        reader = asyncio.get_running_loop(), asyncio.Event()
        with self._changed:
            self._readers.add(reader)
        try:
            position = 0
            while True:
                reader[1].clear()
                while position < len(self._tokens):
                    yield self._tokens[position]
                    position += 1
                with self._changed:
                    if self.done and position == len(self._tokens):
                        self._next(position)
                        return
                    if position < len(self._tokens):
                        continue
                await reader[1].wait()
        finally:
            with self._changed:
                self._readers.discard(reader)

    def _next(self, position: int) -> Token | None:
        """The token there; None behind the last, or the error."""
        if position < len(self._tokens):
            return self._tokens[position]
        if self._error is not None:
            raise self._error
        return None

    def _wake(self) -> None:
        self._changed.notify_all()
        for loop, event in self._readers:
            with contextlib.suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(event.set)
