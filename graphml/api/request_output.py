"""One sequence of a request as its caller sees it: text, stop strings, times, and at last a result.

Knows tokens and their text; nothing of engines, blocks or steps.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from graphml.api.token_stream import Denoised, Result, Timings, TokenStream
from graphml.api.tokens import GeneratedText, Token
from graphml.runtime.blocks.sequence import Sequence
from graphml.sampling.candidates.logprobs import TokenLogprobs
from graphml.text.tokenizer import Tokenizer


@dataclass
class Counts:
    """Sums over ended sequences; changed by the engine's thread alone."""

    hit_tokens: int = 0
    n_preempted: int = 0


class RequestOutput:
    """One sequence's listener: its text, its stop strings, its times."""

    def __init__(
        self, sequence: Sequence, stream: TokenStream, tokenizer: Tokenizer | None, counts: Counts
    ) -> None:
        self._sequence, self._stream, self._counts = sequence, stream, counts
        self._text = GeneratedText(tokenizer, sequence.request.params)
        self._pieces: list[str] = []
        self._tokens: list[int] = []
        self._scores: TokenLogprobs | None = None  # of the latest token
        self._logprobs: list[TokenLogprobs] = []

    def prompt_computed(self, count: int) -> None:
        """See `Listener`."""
        self._stream.note_progress(self._sequence.index, count)

    def denoised(self) -> None:
        """See `Listener`."""
        assert self._sequence.denoiser is not None
        self._stream.note_denoised(Denoised(self._sequence.index, self._sequence.denoiser))

    def sampled(self, token: int) -> str | None:
        """See `Listener`: text that was held back comes with the token that ends it."""
        scores = self._sequence.scores
        self._scores = scores.pop(0) if scores else None
        if self._scores is not None and self._sequence.was_drafted:
            self._scores = replace(self._scores, drafted=True)
        reason = self._text.ended_by(token)
        piece = self._text.flush() if reason else ""
        if piece:
            self._give(token, piece)
        return reason

    def appended(self, token: int, last: bool) -> str | None:
        """See `Listener`: a stop string may end the sequence."""
        self._tokens.append(token)
        if self._scores is not None:
            self._logprobs.append(self._scores)
        piece, stopped = self._text.push(token)
        if last and not stopped:
            piece += self._text.flush()
        self._give(token, piece)
        return "stop" if stopped else None

    def _give(self, token: int, piece: str) -> None:
        self._pieces.append(piece)
        self._stream.put(Token(token, piece, self._sequence.index, self._scores))

    def ended(self, reason: str) -> None:
        """See `Listener`."""
        self._close_drafts()
        sequence, ttft = self._sequence, self._stream.so_far(self._sequence.index).first_s
        n_prompt, total = sequence.request.n_prompt, time.monotonic() - self._stream.begin
        tokens = self._tokens
        n_cached = max(sequence.n_cached, 0) + sequence.n_source_cached
        if sequence.n_cached >= 0:  # it has run, and this is the engine's thread
            self._counts.hit_tokens += n_cached
            self._counts.n_preempted += sequence.n_preempted
        if reason in ("cancel", "deadline"):
            self._pieces.append(self._text.flush())
        n_read = n_prompt + len(sequence.request.source)
        rest, timed = total - ttft, len(tokens) - 1
        if sequence.denoiser is not None:  # its steps are for all tokens
            timed, rest = len(tokens), total
        timings = Timings(
            ttft_s=ttft, total_s=total, prompt_tps=(n_read - n_cached) / ttft if ttft else 0.0,
            gen_tps=timed / rest if rest and timed > 0 else 0.0,
        )  # fmt: skip
        text, wanted = "".join(self._pieces), sequence.request.params.logprobs is not None
        scores = self._logprobs if wanted else None, sequence.prompt_scores
        drafts = sequence.drafts
        counts = (0, 0) if drafts is None else (drafts.n_drafted, drafts.n_accepted)
        more = *scores, *counts, drafts is not None
        captured = {} if sequence.captured is None else sequence.captured.taken()
        result = Result(tokens, text, reason, n_read, n_cached, len(tokens), timings, *more, captured)
        self._stream.end(sequence.index, result)

    def failed(self, error: BaseException) -> None:
        """See `Listener`."""
        self._close_drafts()
        self._stream.fail(error)

    def _close_drafts(self) -> None:
        if self._sequence.drafts is not None:
            self._sequence.drafts.drafter.close()
