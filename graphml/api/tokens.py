"""Token ids as they come in and go out of a session: checked ids, generated tokens and their text.

Knows a vocabulary's size and its text; nothing of models or logits.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, ClassVar, Literal, NoReturn, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphml.errors import UsageError
from graphml.other_attributes import NamesOthers
from graphml.sampling import SamplingParams
from graphml.sampling.candidates.logprobs import ScoredToken, TokenLogprobs
from graphml.text.stop_strings import StopMatcher
from graphml.text.tokenizer import Tokenizer

Ids: TypeAlias = "Sequence[int] | NDArray[np.integer[Any]]"
NO_IDS: NDArray[np.int32] = np.empty(0, np.int32)
StopReason: TypeAlias = Literal["end", "stop", "length", "context", "cancel"]


class TokenIterator(Iterator["Token"]):
    """The tokens of a generation, each computed when it is asked for; `text`, and `str`, ask for all of them.

    on_begun: called once, when the first is asked for or it is closed.
    """

    def __init__(self, tokens: Generator[Token, None, None], on_begun: Callable[[], None]) -> None:
        self._tokens, self._pieces = tokens, list[str]()
        self._on_begun: Callable[[], None] | None = on_begun

    def __next__(self) -> Token:
        if self._on_begun is not None:
            self._begin()
        token = next(self._tokens)
        self._pieces.append(token.piece)
        return token

    def __repr__(self) -> str:
        return "TokenIterator(computes tokens as they are asked for: iterate over it, or read .text)"

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """The text of all its tokens; those that were not asked for yet are computed."""
        for _ in self:
            pass
        return "".join(self._pieces)

    def close(self) -> None:
        """End the generation; no tokens are left."""
        self._begin()
        self._tokens.close()

    def _begin(self) -> None:
        on_begun, self._on_begun = self._on_begun, None
        if on_begun is not None:
            on_begun()


class Token(str, NamesOthers):
    """A generated token: the text that became certain with it, its id, and the number of its sequence.

    It is that text, its `piece`, and does not change. The pieces of all tokens together are the answer: one
    is empty while a character is not complete or a stop string may be beginning, and then holds several
    tokens' text. Control tokens have none. logprobs: how likely it was, where `SamplingParams.logprobs` asks.
    """

    _same: ClassVar = {**dict.fromkeys(("text", "content", "token"), "piece"), "token_id": "id"}

    id: int
    piece: str
    index: int  # type: ignore[assignment]  # in place of the text's method
    logprobs: TokenLogprobs | None

    def __new__(cls, id: int, piece: str, index: int = 0, logprobs: TokenLogprobs | None = None) -> Self:
        """The text is the piece."""
        token = super().__new__(cls, piece)
        token.__dict__.update(id=id, piece=piece, index=index, logprobs=logprobs)
        return token

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a token does not change: {name} is {getattr(self, name, None)!r}")

    def __getnewargs__(self) -> tuple[int, str, int, TokenLogprobs | None]:  # type: ignore[override]
        """What a copy is made of."""
        return self.id, self.piece, self.index, self.logprobs

    def __bool__(self) -> bool:
        return True  # a token without text is one, too

    def __repr__(self) -> str:
        index = f", index={self.index}" if self.index else ""
        logprob = "" if self.logprob is None else f", logprob={self.logprob:.4g}"
        return f"Token({self.id}, {self.piece!r}{index}{logprob})"

    @property
    def logprob(self) -> float | None:
        """The natural logarithm of its probability; None where `SamplingParams.logprobs` did not ask."""
        return None if self.logprobs is None else self.logprobs.logprob

    @property
    def rank(self) -> int | None:
        """1 where no token was more likely, 2 where one was, ...; None where nobody asked."""
        return None if self.logprobs is None else self.logprobs.rank

    @property
    def entropy(self) -> float | None:
        """Of the distribution that it comes from, in nats; None where nobody asked."""
        return None if self.logprobs is None else self.logprobs.entropy

    @property
    def top_logprobs(self) -> tuple[ScoredToken, ...]:
        """The most likely tokens, each with bytes and log-probability; empty where nobody asked."""
        return () if self.logprobs is None else self.logprobs.top


def checked_ids(ids: Ids, n_vocab: int, some: bool = False) -> NDArray[np.int32]:
    """Return the ids as an array of its own; UsageError unless they are whole numbers from 0 to n_vocab - 1.

    some: there must be at least one.
    """
    if isinstance(ids, (str, bytes)):
        raise UsageError(f"ids: wanted token ids, got a text; encode it first: {ids[:40]!r}")
    try:
        array = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids))
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"ids: wanted a sequence of token ids: {error}") from None
    if array.size == 0 and array.ndim == 1:
        if some:
            raise UsageError("ids: wanted at least one token id, got none")
        return NO_IDS
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise UsageError(f"ids: wanted whole numbers [n], got {array.dtype} {list(array.shape)}")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= n_vocab:
        raise UsageError(f"ids: wanted ids from 0 to {n_vocab - 1}, got {low if low < 0 else high}")
    return array.astype(np.int32)


def check_stop(tokenizer: Tokenizer | None, params: SamplingParams) -> None:
    """UsageError for stop strings without a tokenizer, whose text could be compared."""
    if params.stop and tokenizer is None:
        raise UsageError("stop: wanted a model with a tokenizer, whose text could be compared")


class GeneratedText:
    """The text of a growing sequence of tokens, ended by a token or cut off at a stop string."""

    def __init__(self, tokenizer: Tokenizer | None, params: SamplingParams) -> None:
        self._stream = tokenizer.stream(skip_special=True) if tokenizer is not None else None
        self._ends = tokenizer.end_tokens if tokenizer is not None else frozenset()
        self._stop_tokens = params.stop_tokens
        self._stops = StopMatcher(params.stop) if params.stop else None

    def ended_by(self, token: int) -> StopReason | None:
        """Why this token ends the text without being part of it; None if it does not."""
        if token in self._ends:
            return "end"
        return "stop" if token in self._stop_tokens else None

    def push(self, token: int) -> tuple[str, bool]:
        """Return the text that this token made certain, and whether a stop string was met."""
        text = "" if self._stream is None else self._stream.push(token)
        return (text, False) if self._stops is None else self._stops.push(text)

    def flush(self) -> str:
        """Return what was held back, as far as no stop string is in it."""
        rest = "" if self._stream is None else self._stream.flush()
        if self._stops is None:
            return rest
        shown, stopped = self._stops.push(rest)
        return shown if stopped else shown + self._stops.flush()
