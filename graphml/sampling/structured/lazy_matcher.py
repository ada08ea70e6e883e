"""A matcher that begins later: from a trigger text or token on, or behind one; before, the text is free.

As llama.cpp's lazy grammars, whose structure begins with the trigger: tool calls may follow free text. And
answers that begin behind a reasoning part. Knows matchers; nothing of grammars or sessions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from graphml.errors import UsageError
from graphml.sampling.candidates.candidates import Floats
from graphml.sampling.chain.next_logits import NextLogits
from graphml.sampling.structured.matcher import Matcher
from graphml.sampling.structured.packed_masks import Bits, set_bits
from graphml.sampling.structured.token_bytes import Bools, TokenBytes

MAX_PATTERN: Final = 1000
MAX_WAITING_BYTES: Final = 1 << 20
MAX_SECONDS: Final = 0.05
"""Of the search behind a token, which others of a step wait for: expressions may take exponential time."""


class Triggers:
    """What ends the waiting: patterns, which match text from the trigger's begin on, and tokens.

    behind: whether the structure begins behind the token that completes the trigger, and must come: the text
    may not end before. Otherwise it begins with the trigger, or never. spelled: the text of control tokens
    that patterns are about. tolerant: where the trigger's tokens do not follow the structure, the text stays
    free, instead of an error.
    """

    def __init__(
        self,
        patterns: Sequence[str],
        tokens: Sequence[int],
        behind: bool = False,
        spelled: Mapping[int, bytes] | None = None,
        tolerant: bool = False,
    ) -> None:
        if not patterns and not tokens:
            raise UsageError("lazy: trigger_patterns or trigger_tokens are wanted, there are none")
        self.behind, self.tolerant = behind, tolerant
        self.spelled = spelled or {}
        self.tokens = frozenset(tokens)
        self.patterns = [_compiled(pattern) for pattern in patterns]

    def start(self, text: bytes) -> int | None:
        """Where the constrained part begins: the first group that matched something, else the whole match."""
        end = time.monotonic() + MAX_SECONDS
        for pattern in self.patterns:
            whole = pattern.pattern.startswith(b"^") and pattern.pattern.endswith(b"$")
            searches = [pattern.fullmatch, pattern.search] if whole else [pattern.search]
            match = None
            for search in searches:
                try:
                    match = match or search(text, timeout=self._left(end))
                except TimeoutError:
                    shown = pattern.pattern.decode("utf-8", "replace")
                    raise UsageError(
                        f"trigger_patterns: {shown!r:.80}: wanted expressions that need less than "
                        f"{MAX_SECONDS} s in a text of {len(text)} bytes"
                    ) from None
            if match is not None:
                groups = range(1, pattern.groups + 1)
                starts = (match.start(group) for group in groups if match.group(group))
                return int(next(starts, match.start()))
        return None

    def _left(self, end: float) -> float | None:
        """The time that a search has; tolerant ones are of formats, whose expressions are known."""
        return None if self.tolerant else max(end - time.monotonic(), 1e-3)


def _compiled(pattern: str) -> Any:
    import regex  # costs every start 14 ms

    if len(pattern) > MAX_PATTERN:
        raise UsageError(f"trigger_patterns: at most {MAX_PATTERN} characters, one has {len(pattern)}")
    try:
        return regex.compile(pattern.encode())
    except (regex.error, RecursionError) as error:
        raise UsageError(f"trigger_patterns: {pattern!r:.80}: {error}") from error


class FreeText:
    """The place in a text that is free; behind: what may not end yet."""

    def __init__(self, vocabulary: TokenBytes, behind: bool) -> None:
        self._bits: Bits = np.full((vocabulary.n + 7) // 8, 255, np.uint8)
        self._n, self._ends = vocabulary.n, not behind
        if behind:
            set_bits(self._bits, vocabulary.end_tokens, False)

    def bits(self) -> Bits:
        """All tokens, but ends behind a text that must come."""
        return self._bits

    def forced_bytes(self) -> bytes:
        """None."""
        return b""

    def walk(self, accepted: Sequence[int]) -> None:
        """None."""
        return

    def allows(self, token: int) -> bool:
        """Whether it is a token."""
        return 0 <= token < self._n

    def may_end(self) -> bool:
        """Whether it may end."""
        return self._ends

    def accept(self, token: int) -> None:
        """All places are the same."""

    def rewind(self, n: int) -> None:
        """All places are the same."""

    def copy(self) -> FreeText:
        """The same, which has no state."""
        return self


class LazyMatcher(Matcher):
    """Allows every token until a trigger, then matches by a matcher that `make` makes.

    The tokens of the trigger are matched, too, unless it begins behind them. Of a token in which a trigger
    pattern's match begins, the bytes from there on are matched.
    """

    def __init__(
        self, make: Callable[[], Matcher], vocabulary: TokenBytes, triggers: Triggers, name: str
    ) -> None:
        super().__init__(FreeText(vocabulary, triggers.behind), vocabulary, name)
        self._make, self._triggers = make, triggers
        self._inner: Matcher | None = None
        self._n_before = 0  # tokens up to the trigger's end, once it came
        self._text = b""
        self._gave_up = False  # a trigger came that the structure does not follow: all of the text is free

    @property
    def waiting(self) -> bool:
        """Whether no trigger has come yet."""
        return self._inner is None

    def allowed(self, ids: npt.ArrayLike) -> Bools:
        """Whether each of these tokens may come next."""
        if self._inner is None and not self._triggers.behind:
            return np.ones(np.size(np.asarray(ids)), bool)
        return super().allowed(ids) if self._inner is None else self._inner.allowed(ids)

    def bits(self) -> Bits:
        """The tokens that may come next."""
        return super().bits() if self._inner is None else self._inner.bits()

    def needed_bits(self) -> Bits | None:
        """The tokens that may come next; None while all may."""
        if self._inner is None and not self._triggers.behind:
            return None
        return self.bits()

    def masked(self, row: Floats) -> NextLogits:
        """A row of logits with -inf for what may not come next; the row itself while all may."""
        if self._inner is not None:
            return self._inner.masked(row)
        return super().masked(row) if self._triggers.behind else NextLogits(row)

    def forced(self, most: int) -> list[int]:
        """Accept and return the tokens of the text that must come next; none while it is free."""
        forced = [] if self._inner is None else self._inner.forced(most)
        self._accepted += forced
        return forced

    def allows(self, token: int) -> bool:
        """Whether this token may come next."""
        return super().allows(token) if self._inner is None else self._inner.allows(token)

    def may_end(self) -> bool:
        """Whether the text may end here."""
        return super().may_end() if self._inner is None else self._inner.may_end()

    def accept(self, token: int) -> None:
        """Go on by a token. UsageError if it is not allowed, or if the trigger's text does not match."""
        if self._inner is not None:
            self._inner.accept(token)
        elif not self.allows(token):
            raise UsageError(f"{self._name}: token {token} is not possible before the structure begins")
        elif token in self._triggers.tokens:
            self._begin([(token, self._piece(token))])
        elif token not in self._vocabulary.end_tokens and not self._gave_up:
            self._wait(token)
        if token not in self._vocabulary.end_tokens:
            self._accepted.append(token)

    def rewind(self, n: int) -> None:
        """Take back the last n tokens, a trigger among them where need be."""
        if not 0 <= n <= len(self._accepted):
            raise UsageError(f"n: 0 to {len(self._accepted)} tokens can be taken back, got {n}")
        kept = len(self._accepted) - n
        if self._inner is not None and kept >= self._n_before:
            self._inner.rewind(n)
            del self._accepted[kept:]
            return
        again, self._accepted = self._accepted[:kept], []
        self._inner, self._text, self._gave_up = None, b"", False
        for token in again:
            self.accept(token)

    def copy(self) -> LazyMatcher:
        """The same place, to go on separately."""
        copied = LazyMatcher(self._make, self._vocabulary, self._triggers, self._name)
        copied._inner = None if self._inner is None else self._inner.copy()
        copied._n_before, copied._text, copied._accepted = self._n_before, self._text, list(self._accepted)
        copied._gave_up = self._gave_up
        return copied

    def _piece(self, token: int) -> bytes:
        return self._triggers.spelled.get(token) or self._vocabulary.pieces[token]

    def _wait(self, token: int) -> None:
        self._text += self._piece(token)
        if len(self._text) > MAX_WAITING_BYTES:
            raise UsageError(f"{self._name}: no trigger within {MAX_WAITING_BYTES} bytes")
        start = self._triggers.start(self._text)
        if start is None:
            return
        behind: list[tuple[int, bytes]] = []
        end = len(self._text)
        for token_id in reversed([*self._accepted, token]):
            if end <= start:
                break
            piece = self._piece(token_id)
            behind.append((token_id, self._text[max(start, end - len(piece)) : end]))
            end -= len(piece)
        try:
            self._begin(behind[::-1])
        except UsageError:
            if not self._triggers.tolerant:
                raise
            self._gave_up = True

    def _begin(self, trigger: Sequence[tuple[int, bytes]]) -> None:
        """Match the trigger's tokens, if it is to be matched; of one that is there in part, its bytes."""
        inner = self._make()
        for token, piece in () if self._triggers.behind else trigger:
            for token_id in [token] if piece == self._piece(token) else self._single(piece):
                if not inner.allows(token_id):
                    raise self._misfit(inner, trigger)
                inner.accept(token_id)
        self._inner, self._n_before = inner, len(self._accepted) + 1

    def _single(self, piece: bytes) -> list[int]:
        """The tokens of single bytes."""
        tokens = []
        for byte in piece:
            single = self._vocabulary.of_byte[byte]
            if single is None:
                raise UsageError(f"{self._name}: the vocabulary has no token for the byte {byte:#04x}")
            tokens.append(single)
        return tokens

    def _misfit(self, inner: Matcher, trigger: Sequence[tuple[int, bytes]]) -> UsageError:
        """The error of a trigger's text that does not follow the structure; inner: where it stopped."""
        text = repr(b"".join(piece for _, piece in trigger).decode("utf-8", "replace"))
        before = b"".join(map(self._piece, inner.accepted)).decode("utf-8", "replace")
        if not before:
            return UsageError(
                f"{self._name}: the trigger's text {text} cannot begin the structure, which "
                f"{inner.next_text('begins with')}"
            )
        return UsageError(
            f"{self._name}: the text {text} from the trigger on does not follow the structure: "
            f"behind {before!r} it {inner.next_text('has')}"
        )
