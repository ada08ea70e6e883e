"""A request that an engine computes, as handlers read it: tokens, progress of its prompt, results, figures.

Knows a handle of the engine and who is told of its end; nothing of protocols.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from graphml.api.model import Model
from graphml.api.request_handle import Handle
from graphml.api.token_stream import Denoised, Result
from graphml.api.tokens import Token
from graphml.server.engine.saved_slots import SavedSlots
from graphml.server.observing.server_metrics import SequenceUse, ServerMetrics
from graphml.server.requests.sampling_settings import RequestSettings


class Access(Protocol):
    """Where it reports its progress and its end: an `EngineAccess`."""

    model: Model
    metrics: ServerMetrics
    slots: SavedSlots
    numbers: itertools.count[int]
    active: dict[int, Generation]

    def generated(self, key: str | None, count: int) -> None:
        """Count tokens of an answer that has ended."""


class Generation:
    """A request that the engine computes: its ids, settings, tokens and results."""

    def __init__(
        self,
        access: Access,
        handle: Handle,
        ids: list[int],
        settings: RequestSettings,
        arrived: float,
        kept_as: int | None = None,
        key: str | None = None,
    ) -> None:
        self._access, self._handle, self._kept_as = access, handle, kept_as
        self.key, self.id = key, ""  # by which its client knows it
        self.ids, self.settings = ids, settings
        self.number = next(access.numbers)
        self.arrived, self.submitted = arrived, time.monotonic()
        self._last = arrived
        self.n_generated = 0
        self.first: float | None = None
        self.stop_reasons: list[str] = []
        self.slot = -1
        self._spaced: dict[int, bool] = {}
        self._silent: dict[int, int] = {}

    async def tokens(self) -> AsyncIterator[Token]:
        """Its tokens as they come; it is cancelled where nobody reads to the end."""
        try:
            async for token in self._handle:
                yield self._came(token)
            self._all_came()
        finally:
            self.cancel()

    async def with_denoised(self) -> AsyncIterator[Token | Denoised]:
        """The same, and steps of a diffusion model before the tokens that they settle."""
        try:
            async for item in self._handle.with_denoised():
                yield self._came(item) if isinstance(item, Token) else item
            self._all_came()
        finally:
            self.cancel()

    def _came(self, token: Token) -> Token:
        """Count a token; its text as a part of a whole."""
        metrics, now = self._access.metrics, time.monotonic()
        if not self.n_generated:
            self.first = now
            metrics.ttft.observe(now - self.arrived)
            self.slot = max(self.slot, self._handle.sequences[0].slot)
        else:
            metrics.itl.observe(now - self._last)
        self._last = now
        self.n_generated += 1
        self._silent[token.index] = 0 if token.piece else self._silent.get(token.index, 0) + 1
        return self._with_space(token)

    def _all_came(self) -> None:
        """Note why its sequences ended, and keep the text of the first in its slot."""
        self.stop_reasons += [result.stop_reason for result in self.results()]
        slot = self.slot if self._kept_as is None else self._kept_as
        self._access.slots.ended(slot, self.key, [*self.ids, *self._handle.results(0)[0].tokens])

    async def prompt_progress(self) -> AsyncIterator[dict[str, Any]]:
        """What `return_progress` reports: how much of the prompt is computed, at first what was cached."""
        total, reported, begin = len(self.ids), -1, self.submitted

        def shown(processed: int, seconds: float) -> dict[str, Any]:
            cached = max(0, self.sequences[0].n_cached)
            return {"total": total, "cache": cached, "processed": processed, "time_ms": seconds * 1e3}

        async for index, count in self._handle.prompt_progress():
            if index == 0 and count > reported:
                if reported < 0:
                    yield shown(max(0, self.sequences[0].n_cached), 0.0)
                reported = count
                yield shown(count, time.monotonic() - begin)
        if reported < 0:
            yield shown(max(0, self.sequences[0].n_cached), 0.0)
        if reported < total:
            yield shown(total, time.monotonic() - begin)

    async def finished(self) -> list[Result]:
        """What its sequences became, once all have ended."""
        async for _ in self.tokens():
            pass
        return self.results()

    def results(self) -> list[Result]:
        """What its sequences became; they have ended."""
        every = self._handle.results(timeout=0)
        return [
            replace(result, text=" " + result.text) if self._leads(result.tokens) else result
            for result in every
        ]

    def shown(self, index: int) -> int:
        """How many of an answer's tokens its text has: those of a stop string that was cut off are none."""
        result = self._handle.results(timeout=0)[index]
        return result.n_gen - (self._silent.get(index, 0) if result.stop_reason == "stop" else 0)

    def _with_space(self, token: Token) -> Token:
        """A token with the space before an answer's first word, which belongs to a text that goes on."""
        known = self._spaced.get(token.index)
        if known is None:
            known = self._spaced[token.index] = self._leads([token.id])
        if not known or not token.piece:
            return token
        self._spaced[token.index] = False
        return Token(token.id, " " + token.piece, token.index, token.logprobs)

    def _leads(self, tokens: Sequence[int]) -> bool:
        """Whether a text of its own would drop the first token's space."""
        tokenizer = self._access.model.tokenizer
        if tokenizer is None or not tokens or tokenizer.is_special(tokens[0]):
            return False
        return tokenizer.first_bytes(tokens[0]) != tokenizer.piece_bytes(tokens[0])

    @property
    def sequences(self) -> tuple[Any, ...]:
        """What the engine computes for it, to be looked at."""
        return self._handle.sequences

    def used(self, index: int, n_gen: int | None = None) -> SequenceUse:
        """What a sequence has used so far, or had when `n_gen` of its tokens had come."""
        sequence, so_far = self.sequences[index], self._handle.so_far(index, n_gen)
        request, cached, has_run = sequence.request, max(0, sequence.n_cached), sequence.n_cached >= 0
        n_source, source_cached = len(request.source), sequence.n_source_cached
        n_read = request.n_prompt if so_far.n_gen else so_far.n_read
        return SequenceUse(
            request.n_prompt + n_source, cached + source_cached,
            max(0, n_read - cached) + has_run * (n_source - source_cached),
            so_far.n_gen, so_far.first_s, so_far.last_s - so_far.first_s,
        )  # fmt: skip

    @property
    def n_cached(self) -> int:
        """Tokens of the prompt that were found computed."""
        return max(0, int(self.sequences[0].n_cached))

    @property
    def asked(self) -> dict[str, Any]:
        """How its tokens are sampled, by the names of OpenAI's requests; what nobody asked for is None."""
        params, settings = self.settings.params, self.settings
        names = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty")
        return {
            **{name: float(getattr(params, name)) for name in names},
            "max_tokens": settings.max_tokens, "seed": settings.seed, "stop_sequences": list(params.stop),
            "choice.count": settings.n if settings.n != 1 else None, "json": bool(params.json_schema),
        }  # fmt: skip

    def end_reasoning(self) -> bool:
        """See `Handle.end_reasoning`."""
        return self._handle.end_reasoning()

    def cancel(self) -> None:
        """Nobody wants it any more; what it has used is counted, once."""
        if self._access.active.pop(self.number, None) is not None:
            self._access.generated(self.key, sum(sequence.n_generated for sequence in self.sequences))
            reasons = self.stop_reasons or ["cancel"] * len(self.sequences)
            for index, reason in enumerate(reasons):
                self._access.metrics.ended(self.used(index), self.submitted - self.arrived, reason)
        self._handle.cancel()
