"""The tokens of a request as they come: written by one thread, read by any number of threads and event loops.

Knows tokens and results; nothing of engines or models.
"""

from __future__ import annotations

import contextlib
import math
import reprlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import Empty
from typing import ClassVar, NamedTuple, TypeVar

from graphml.api.answer_text import finish_reason
from graphml.api.reader_wakes import TaskReader, ThreadReader, WaitingReader, Wakes
from graphml.api.tokens import Token
from graphml.ir.op import Array
from graphml.other_attributes import NamesOthers
from graphml.sampling.candidates.logprobs import ScoredToken, TokenLogprobs
from graphml.sampling.denoiser import Denoiser
from graphml.system.notebook_html import html_table

_SHOWN = reprlib.Repr()
_SHOWN.maxstring = 80
T = TypeVar("T")
R = TypeVar("R", bound=WaitingReader)


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
class Result(NamesOthers):
    """What a sequence became. tokens: generated ids, without the prompt's; text: theirs.

    `str`, `in`, `+` and a text's methods are those of its text.

    stop_reason: "end", "stop", "length", "context", "cancel" or "deadline". n_cached: ids of the prompt that
    were not computed, since blocks held them. logprobs: of each token; prompt_logprobs: of each id of the
    prompt, None for the first; both None where the params do not ask for them. n_drafted, n_accepted: tokens
    that were computed as drafts, and those of them that were right; drafting: whether drafts were on.
    captured: name -> rows of all tokens that were computed: prompt and tokens, but a last one that ended it.
    """

    _instead: ClassVar = {
        **dict.fromkeys(("[]", "choices", "outputs", "message"), "text"),
        "usage": "n_prompt and n_gen", "n_tokens": "n_gen, or n_prompt",
        **dict.fromkeys(("duration", "elapsed", "total_duration", "time", "latency"), "timings.total_s"),
        "ttft": "timings.ttft_s", "truncated": "stop_reason", "logits": "Model.logits(text), or logprobs",
        "model": "Model.path",
        **dict.fromkeys(("tps", "tokens_per_second", "speed"), "timings.gen_tps"),
        **dict.fromkeys(("parsed", "json", "to_dict"), "json.loads(result.text), or vars(result)"),
    }  # fmt: skip
    _same: ClassVar = {
        **{name: f"text.{name}" for name in dir(str) if name[0] != "_"},
        **dict.fromkeys(("content", "response", "generated_text", "output", "answer"), "text"),
        "sequences": "tokens", **dict.fromkeys(("done_reason", "stop_type"), "finish_reason"),
        "eval_count": "n_gen", "prompt_eval_count": "n_prompt", "cached_tokens": "n_cached",
        "token_ids": "tokens", "ids": "tokens",
        "prompt_tokens": "n_prompt", "completion_tokens": "n_gen",
    }  # fmt: skip

    tokens: list[int]
    text: str
    stop_reason: str
    n_prompt: int
    n_cached: int
    n_gen: int
    timings: Timings = field(compare=False)
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    n_drafted: int = 0
    n_accepted: int = 0
    drafting: bool = False
    captured: dict[str, Array] = field(default_factory=dict, compare=False, repr=False)

    def __repr__(self) -> str:
        counts = f"{self.n_prompt} tokens of the prompt, {self.n_gen} generated"
        return f"Result({_SHOWN.repr(self.text)}, {self.stop_reason}: {counts})"

    def __str__(self) -> str:
        return self.text

    def __contains__(self, text: str) -> bool:
        return text in self.text

    def __add__(self, text: str) -> str:
        return self.text + str(text)

    def __radd__(self, text: str) -> str:
        return text + self.text

    def _repr_html_(self) -> str:
        if self.logprobs is None:
            return html_table(repr(self), ("text",), [(self.text,)])
        rows = (
            (_shown(token.bytes), f"{math.exp(token.logprob):.1%}", token.rank, _alternatives(token.top))
            for token in self.logprobs
        )
        return html_table(repr(self), ("token", "probability", "rank", "most likely"), rows)

    @property
    def finish_reason(self) -> str:
        """The stop_reason in OpenAI's words, "stop" or "length"; "cancel" and "deadline" as they are."""
        return finish_reason(self.stop_reason)

    @property
    def cumulative_logprob(self) -> float | None:
        """The sum of its tokens' log-probabilities; None where nobody asked for them."""
        return None if self.logprobs is None else math.fsum(token.logprob for token in self.logprobs)

    @property
    def mean_logprob(self) -> float | None:
        """Their mean; -inf for an empty text, which no other is compared with; None where nobody asked."""
        total = self.cumulative_logprob
        return None if total is None else total / len(self.tokens) if self.tokens else -math.inf


def _shown(piece: bytes) -> str:
    return repr(piece.decode("utf-8", "replace"))


def _alternatives(top: Sequence[ScoredToken]) -> str:
    return ", ".join(f"{_shown(token.bytes)} {math.exp(token.logprob):.1%}" for token in top)


@dataclass(frozen=True)
class Denoised:
    """A step of a diffusion model: of which sequence, and its answer, which later steps fill in further."""

    index: int
    answer: Denoiser


class SoFar(NamedTuple):
    """Of a sequence: n_read ids of its prompt in blocks; seconds to its first token and to its last one."""

    n_read: int
    n_gen: int
    first_s: float
    last_s: float


class TokenStream:
    """Tokens in the order in which they came, all of them for each reader; and a result for each sequence.

    One thread writes. There is no lock: lists are appended to and references stored at once, and a reader
    that was interrupted while it held a lock would stop the writer. A reader registers, reads, then waits.
    wakes: calls readers; they are woken when all streams of a step are written.
    """

    def __init__(self, n_sequences: int, wakes: Wakes) -> None:
        self.begin = time.monotonic()
        self._times: list[list[float]] = [[] for _ in range(n_sequences)]  # of each one's tokens
        self._wakes = wakes
        self._items: list[Token | Denoised] = []
        self.n_tokens = 0  # so far, of all sequences
        self._results: list[Result | None] = [None] * n_sequences
        self.progress: list[tuple[int, int]] = []
        self._error: BaseException | None = None
        self._readers: list[WaitingReader] = []

    def put(self, token: Token) -> None:
        """One more token."""
        self._times[token.index].append(time.monotonic())
        self._items.append(token)
        self.n_tokens += 1
        self._call_readers()

    def note_denoised(self, denoised: Denoised) -> None:
        """A step has filled in an answer; readers of `with_denoised` see it, before its tokens."""
        self._items.append(denoised)
        self._call_readers()

    def note_progress(self, index: int, count: int) -> None:
        """So many ids of a sequence's prompt are computed; readers of `progress` see it."""
        self.progress.append((index, count))
        self._call_readers()

    def end(self, index: int, result: Result) -> None:
        """A sequence has ended."""
        self._results[index] = result
        self._call_readers()

    def fail(self, error: BaseException) -> None:
        """The request has failed; readers get the error behind the tokens that were before it."""
        self._error = self._error or error
        self._call_readers()

    @property
    def done(self) -> bool:
        """Whether nothing follows."""
        return self._error is not None or None not in self._results

    def so_far(self, index: int, n_gen: int | None = None) -> SoFar:
        """A sequence as it is now, or as it was when `n_gen` of its tokens had come."""
        n_read = max((count for i, count in self.progress if i == index), default=0)
        times, result = self._times[index], self._results[index]
        if result is not None and n_gen is None:
            return SoFar(n_read, result.n_gen, result.timings.ttft_s, result.timings.total_s)
        n_gen = len(times) if n_gen is None else n_gen
        first, last = (times[0], times[n_gen - 1]) if n_gen else [time.monotonic()] * 2
        return SoFar(n_read, n_gen, first - self.begin, last - self.begin)

    def wait(self, timeout: float | None = None) -> list[Result]:
        """The results of all sequences, once they have ended; raises what the request failed with."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._reading(ThreadReader(at_end=True)) as reader:
            while not self.done:
                try:
                    reader.woken.get(timeout=None if end is None else max(0.0, end - time.monotonic()))
                except Empty:
                    raise TimeoutError(f"the request has not ended within {timeout} s") from None
        self._check()
        return [result for result in self._results if result is not None]

    def __iter__(self) -> Iterator[Token]:
        position = 0
        with self._reading(ThreadReader()) as reader:
            while True:
                done = self.done
                while position < len(self._items):
                    item = self._items[position]
                    position += 1
                    if isinstance(item, Token):
                        yield item
                if done:
                    break
                reader.woken.get()
        self._check()

    async def __aiter__(self) -> AsyncIterator[Token]:
        async for item in self._followed(self._items, lambda: self.done):
            if isinstance(item, Token):
                yield item
        self._check()

    async def with_denoised(self) -> AsyncIterator[Token | Denoised]:
        """Tokens, and steps of a diffusion model."""
        async for item in self._followed(self._items, lambda: self.done):
            yield item
        self._check()

    async def prompt_progress(self) -> AsyncIterator[tuple[int, int]]:
        """Number of the sequence, and how many ids of its prompt are computed, until there is a token."""
        async for progress in self._followed(self.progress, lambda: self.done or self.n_tokens > 0):
            yield progress

    async def _followed(self, growing: list[T], ended: Callable[[], bool]) -> AsyncIterator[T]:
        """What a list has and gets, until nothing more is wanted of it."""
        import asyncio  # 8 MB with its TLS, which only streams in an event loop need

        position = 0
        with self._reading(TaskReader(asyncio.get_running_loop())) as reader:
            while True:
                last, seen = ended(), len(growing)
                while position < seen:
                    yield growing[position]
                    position += 1
                if last:
                    break
                if seen == len(growing) and not ended():  # nothing came while others had the loop
                    await reader.wait()

    @contextlib.contextmanager
    def _reading(self, reader: R) -> Iterator[R]:
        """Within, a reader is called after each change."""
        self._readers.append(reader)
        try:
            yield reader
        finally:
            self._readers.remove(reader)

    def _call_readers(self) -> None:
        for reader in list(self._readers):
            if not reader.at_end or self.done:
                self._wakes.later(reader)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
