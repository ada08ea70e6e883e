"""What a key may use: a share of the engine, requests and tokens a minute, answers at a time.

A minute's allowance fills up steadily. An answer's tokens, which are known at its end, may leave it below
zero; then nothing is begun until it is above. Knows numbers and clocks; nothing of keys' texts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from graphml.server.responses.api_errors import ApiError


@dataclass(frozen=True)
class KeyLimits:
    """What one key may use; None: no limit.

    weight: its share of steps beside others' of 1. priority: the most it may ask for. admin: 1 where it may
    load models.
    """

    weight: float = 1.0
    requests: int | None = None
    tokens: int | None = None
    streams: int | None = None
    priority: int | None = None
    admin: int | None = None


class Allowance:
    """So much a minute, at most that much at once."""

    def __init__(self, a_minute: int, clock: Callable[[], float]) -> None:
        self.a_minute, self._clock = a_minute, clock
        self._room, self._at = float(a_minute), clock()

    def seconds_until(self, count: float) -> float:
        """After which so much may be taken; 0 for now."""
        now = self._clock()
        self._room = min(self.a_minute, self._room + (now - self._at) * self.a_minute / 60)
        self._at = now
        return max(0.0, (count - self._room) * 60 / self.a_minute)

    def take(self, count: float) -> None:
        """So much was used."""
        self._room -= count


@dataclass
class KeyUse:
    """What a key has used since the server began, and may use."""

    limits: KeyLimits = KeyLimits()
    clock: Callable[[], float] = time.monotonic
    requests: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    _of_requests: Allowance | None = field(default=None, init=False)
    _of_tokens: Allowance | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.change(self.limits)

    def change(self, limits: KeyLimits) -> None:
        """Other limits from now on; what is left of the same ones stays."""
        self.limits = limits
        self._of_requests = self._allowance(self._of_requests, limits.requests)
        self._of_tokens = self._allowance(self._of_tokens, limits.tokens)

    def begin(self, n_tokens: int, n_answers: int, n_running: int) -> None:
        """Take a request whose prompts have so many tokens; ApiError 429 where that is too much, 400 if ever.

        n_running: answers of this key that have not ended.
        """
        limits = self.limits
        if limits.streams is not None and n_answers > limits.streams:
            raise ApiError(400, f"this key may have {limits.streams} answers at a time, got {n_answers}")
        if limits.tokens is not None and n_tokens > limits.tokens:
            raise ApiError(
                400, f"this key may use {limits.tokens} tokens a minute, the prompt has {n_tokens}"
            )
        if limits.streams is not None and n_running + n_answers > limits.streams:
            self._refuse(f"this key has {n_running} of {limits.streams} answers at a time", 1.0)
        for allowance, count, what in (
            (self._of_requests, 1, "requests"),
            (self._of_tokens, max(1, n_tokens), "tokens"),
        ):
            seconds = 0.0 if allowance is None else allowance.seconds_until(count)
            if allowance is not None and seconds > 0:
                self._refuse(f"this key may use {allowance.a_minute} {what} a minute", seconds)
        for allowance, count in ((self._of_requests, 1), (self._of_tokens, n_tokens)):
            if allowance is not None:
                allowance.take(count)
        self.requests += 1
        self.prompt_tokens += n_tokens

    def read(self, count: int) -> None:
        """A prompt of a request that was begun with none had so many tokens."""
        self.prompt_tokens += count
        if self._of_tokens is not None:
            self._of_tokens.take(count)

    def generated(self, count: int) -> None:
        """An answer has ended with so many tokens."""
        self.generated_tokens += count
        if self._of_tokens is not None:
            self._of_tokens.take(count)

    def _allowance(self, had: Allowance | None, a_minute: int | None) -> Allowance | None:
        if had is not None and had.a_minute == a_minute:
            return had
        return None if a_minute is None else Allowance(a_minute, self.clock)

    def _refuse(self, text: str, seconds: float) -> None:
        self.refused += 1
        raise ApiError(429, f"{text}; try again later", retry_after=seconds)
