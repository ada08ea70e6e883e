"""A matcher that ends reasoning: after so many tokens of it, or when it is asked to, the end is forced.

As llama.cpp's reasoning budget, but that marks are found in the text, whatever tokens they are written in.
Another structure may count besides. Knows matchers and marks; nothing of templates, sessions or engines.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from graphml.errors import UsageError
from graphml.sampling.candidates.candidates import Floats
from graphml.sampling.chain.next_logits import NextLogits
from graphml.sampling.settings.reasoning_end import ReasoningEnd
from graphml.sampling.structured.lazy_matcher import FreeText
from graphml.sampling.structured.matcher import Matcher
from graphml.sampling.structured.packed_masks import Bits, masked_row, set_bits
from graphml.sampling.structured.token_bytes import Bools, TokenBytes


class Part(Enum):
    """Where a text is: where reasoning may begin, within it, or in text behind which none can."""

    BEFORE, WITHIN, BEHIND = range(3)


class ReasoningPlace(NamedTuple):
    """A place in the text. left: tokens of reasoning that may come, None without a limit, or outside of it.

    written: how many of the forced tokens are there; None while none is forced. tail: the last bytes, in
    which a mark may have begun.
    """

    part: Part
    left: int | None = None
    written: int | None = None
    tail: bytes = b""


class ReasoningMatcher(Matcher):
    """Ends reasoning behind `budget` tokens of it, or where `end_reasoning` says; each part of it anew.

    It begins where those who read answers find it: at the begin, and not in text that spells a mark.

    budget: below 0 for no limit. inner: another structure of the same text, or None: the end is forced
    where that allows its tokens.
    """

    def __init__(self, inner: Matcher | None, vocabulary: TokenBytes, end: ReasoningEnd, budget: int) -> None:
        super().__init__(FreeText(vocabulary, False), vocabulary, "reasoning_budget")
        self._inner, self._end, self._budget = inner, end, budget if budget >= 0 else None
        self._spelled = {token: text.encode() for token, text in end.spelled}
        self._open, self._close = end.open.encode(), end.close.encode()
        self._frame = tuple(text.encode() for text in end.frame)
        self._ended_at = -1  # where it was asked to end
        begin = ReasoningPlace(Part.WITHIN, self._budget) if end.inside else ReasoningPlace(Part.BEFORE)
        self._places = [self._due(begin)]

    def end_reasoning(self) -> bool:
        """Force the end as soon as it can be; False where the text is in no reasoning, or at its end."""
        place = self._places[-1]
        if place.part is not Part.WITHIN or place.written is not None:
            return False
        self._ended_at, self._bits = len(self._accepted), None
        self._places[-1] = self._due(place._replace(left=0))
        return True

    def allowed(self, ids: npt.ArrayLike) -> Bools:
        """Whether each of these tokens may come next."""
        token, inner = self._forced_token(), self._inner
        if token is not None:
            return np.equal(np.asarray(ids, np.int64).reshape(-1), token)
        return super().allowed(ids) if inner is None else inner.allowed(ids)

    def bits(self) -> Bits:
        """The tokens that may come next."""
        token = self._forced_token()
        if token is None:
            return super().bits() if self._inner is None else self._inner.bits()
        bits = np.zeros((self.n + 7) // 8, np.uint8)
        set_bits(bits, [token], True)
        return bits

    def needed_bits(self) -> Bits | None:
        """The tokens that may come next; None while all may."""
        if self._forced_token() is not None:
            return self.bits()
        return None if self._inner is None else self._inner.needed_bits()

    def masked(self, row: Floats) -> NextLogits:
        """A row of logits with -inf for what may not come next; the row itself while all may."""
        if self._forced_token() is not None:
            return NextLogits(masked_row(row, self.bits()))
        return NextLogits(row) if self._inner is None else self._inner.masked(row)

    def forced(self, most: int) -> list[int]:
        """Accept and return the tokens of the text that must come next; none while it is free."""
        place = self._places[-1]
        if place.written is not None:
            tokens = list(self._end.forced[place.written :][:most])
            for token in tokens:
                self.accept(token)
            return tokens
        inner, went = self._inner, list[int]()
        while inner is not None and len(went) < most and self._forced_token() is None:
            step = inner.forced(1)  # one by one: reasoning may begin and end among them
            if not step:
                break
            self._went_on(step[0])
            went += step
        return went

    def allows(self, token: int) -> bool:
        """Whether this token may come next."""
        forced = self._forced_token()
        if forced is not None:
            return token == forced
        return super().allows(token) if self._inner is None else self._inner.allows(token)

    def may_end(self) -> bool:
        """Whether the text may end here."""
        return self._forced_token() is None and (self._inner is None or self._inner.may_end())

    def accept(self, token: int) -> None:
        """Go on by a token; UsageError if it is not allowed. An end token changes nothing where it is."""
        if not self.allows(token):
            raise UsageError(f"{self._name}: token {token} is not possible here")
        if self._inner is not None:
            self._inner.accept(token)
        if token not in self._vocabulary.end_tokens or self._forced_token() is not None:
            self._went_on(token)

    def rewind(self, n: int) -> None:
        """Take back the last n tokens."""
        if not 0 <= n <= len(self._accepted):
            raise UsageError(f"n: 0 to {len(self._accepted)} tokens can be taken back, got {n}")
        if n:
            if self._inner is not None:
                self._inner.rewind(n)
            del self._accepted[-n:], self._places[-n:]

    def copy(self) -> ReasoningMatcher:
        """The same place, to go on separately."""
        inner = None if self._inner is None else self._inner.copy()
        copied = ReasoningMatcher(inner, self._vocabulary, self._end, -1)
        copied._budget, copied._ended_at = self._budget, self._ended_at
        copied._accepted, copied._places = list(self._accepted), list(self._places)
        return copied

    def _forced_token(self) -> int | None:
        written = self._places[-1].written
        return None if written is None else self._end.forced[written]

    def _went_on(self, token: int) -> None:
        place = self._after(self._places[-1], token)
        self._accepted.append(token)
        if place.part is Part.WITHIN and len(self._accepted) == self._ended_at:
            place = place._replace(left=0)
        self._places.append(self._due(place))

    def _after(self, place: ReasoningPlace, token: int) -> ReasoningPlace:
        """The place behind a token, before it is looked at whether reasoning must end there."""
        if place.written is not None:
            written = place.written + 1
            if written < len(self._end.forced):
                return place._replace(written=written)
            return ReasoningPlace(Part.BEFORE)
        if place.part is Part.BEHIND:
            return place
        text = place.tail + (self._spelled.get(token) or self._vocabulary.pieces[token])
        if place.part is Part.BEFORE:
            return self._begun(text)
        left = place.left - 1 if place.left else place.left
        _, close, behind = text.partition(self._close)
        if close:
            return self._begun(behind)
        return place._replace(left=left, tail=_end_of(text, self._close))

    def _begun(self, text: bytes) -> ReasoningPlace:
        """The place behind a text that begins outside of reasoning."""
        while text := text.lstrip():
            frame = next((frame for frame in self._frame if text.startswith(frame)), None)
            if frame is None:
                break
            text = text[len(frame) :]
        at = text.find(self._open) if self._end.anywhere else 0 if text.startswith(self._open) else -1
        if at >= 0:
            text, close, behind = text[at + len(self._open) :].partition(self._close)
            within = ReasoningPlace(Part.WITHIN, self._budget, None, _end_of(text, self._close))
            return self._begun(behind) if close else within
        if self._end.anywhere:
            return ReasoningPlace(Part.BEFORE, tail=_end_of(text, self._open))
        begins = any(mark.startswith(text) for mark in (self._open, *self._frame))
        return ReasoningPlace(Part.BEFORE, tail=text) if begins else ReasoningPlace(Part.BEHIND)

    def _closes(self, tail: bytes) -> bool:
        """Whether the model may be writing the end itself."""
        return any(tail.endswith(self._close[:size]) for size in range(1, len(self._close)))

    def _due(self, place: ReasoningPlace) -> ReasoningPlace:
        """The place, where reasoning must end with its first forced token before it."""
        if place.part is not Part.WITHIN or place.left != 0 or place.written is not None:
            return place
        if _cut(place.tail) or self._closes(place.tail):
            return place
        possible = self._inner is None or _follow(self._inner, self._end.forced)
        return place._replace(written=0) if possible else place


def _end_of(text: bytes, mark: bytes) -> bytes:
    """The last bytes, in which a mark or a character may have begun."""
    return text[-max(len(mark) - 1, 3) :]


def _cut(text: bytes) -> bool:
    """Whether a text ends within a character."""
    for back, byte in enumerate(reversed(text[-3:]), 1):
        if byte >= 0xC0:
            return back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
        if byte < 0x80:
            return False
    return False


def _follow(matcher: Matcher, tokens: tuple[int, ...]) -> bool:
    """Whether a structure allows these tokens, one after the other."""
    if not matcher.allows(tokens[0]):
        return False
    trial = matcher.copy()
    for token in tokens:
        if not trial.allows(token):
            return False
        trial.accept(token)
    return True
