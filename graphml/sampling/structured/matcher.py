"""A matcher of one text against a structure: what samplers see of every kind of structured output.

Knows token ids and masks; nothing of grammars, schemas, sessions or engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from graphml.errors import UsageError
from graphml.sampling.candidates.candidates import Floats
from graphml.sampling.chain.next_logits import NextLogits
from graphml.sampling.structured.canonical_tokens import CanonicalTokens, is_narrow
from graphml.sampling.structured.literal_texts import ByteWalk
from graphml.sampling.structured.number_ends import NumberEnds
from graphml.sampling.structured.packed_masks import Bits, masked_row, unpacked
from graphml.sampling.structured.token_bytes import Bools, TokenBytes


class StructureProgress(Protocol):
    """How far one text has come in one structure: the part that each kind of structure writes."""

    def bits(self) -> Bits:
        """The tokens that may come next, end tokens included, a bit each; not to be changed."""
        ...

    def forced_bytes(self) -> bytes:
        """The only bytes by which the text can go on, none where it may end or there are several."""
        ...

    def walk(self, accepted: Sequence[int]) -> ByteWalk | None:
        """The same place, behind these tokens, as one that is moved by bytes; None where there is none."""
        ...

    def allows(self, token: int) -> bool:
        """Whether this token may come next, without a mask."""
        ...

    def may_end(self) -> bool:
        """Whether the text may end here."""
        ...

    def accept(self, token: int) -> None:
        """Go on by a token that is no end token and is allowed."""
        ...

    def rewind(self, n: int) -> None:
        """Take back the last n tokens that were accepted."""
        ...

    def copy(self) -> StructureProgress:
        """The same place in the same text, to go on separately."""
        ...


class Structure(Protocol):
    """A compiled grammar, schema or expression for one vocabulary, shared by texts and threads."""

    def begin(self) -> StructureProgress:
        """The place before the first token."""
        ...


FEW_TOKENS = 16
"""Up to this many tokens are tried one by one, without a mask over the vocabulary."""

_SHOWN, _LISTED = 60, 8  # characters of a forced text, first characters, in messages


class Matcher:
    """Matches the tokens of one text against a structure.

    `n` is the size of the vocabulary, `eog` the tokens that end a generation, `bytes` the id of each single
    byte (None where there is none). Not for two threads at a time; `copy` is independent.

    canonical: literals are written in these tokens, the tokenizer's own; other tokens that fit are accepted,
    too, but no mask has them. numbers: of JSON that is written end behind some digits, in the same way.
    """

    def __init__(
        self,
        progress: StructureProgress,
        vocabulary: TokenBytes,
        name: str = "grammar",
        canonical: CanonicalTokens | None = None,
        numbers: NumberEnds | None = None,
    ) -> None:
        self._progress, self._vocabulary, self._name = progress, vocabulary, name
        self._canonical, self._numbers = canonical, numbers
        self._accepted: list[int] = []
        self._bits: Bits | None = None  # of this place, once they were asked for
        self.n = vocabulary.n
        self.eog = sorted(vocabulary.end_tokens)

    @property
    def bytes(self) -> list[int | None]:
        """The id of each single byte; None for a byte that no token has alone."""
        return self._vocabulary.of_byte

    @property
    def accepted(self) -> Sequence[int]:
        """The tokens so far, end tokens left out."""
        return self._accepted

    def allowed(self, ids: npt.ArrayLike) -> Bools:
        """Whether each of these tokens may come next: [len(ids)] bools. UsageError for ids out of range."""
        tokens = np.asarray(ids, np.int64).reshape(-1)
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < self.n:
            raise UsageError(f"ids: token ids from 0 to {self.n - 1} are wanted, got {ids!r:.80}")
        if len(tokens) > FEW_TOKENS or self._narrows:
            allowed: Bools = self.mask()[tokens]
            return allowed
        return np.array([self.allows(int(token)) for token in tokens], bool)

    def bits(self) -> Bits:
        """The tokens that may come next, a bit each; not to be changed. Kept until the next `accept`."""
        if self._bits is None:
            self._bits = self._progress.bits()
            if self._canonical is not None and is_narrow(self._bits):
                walk = self._progress.walk(self._accepted)
                if walk is not None:
                    self._bits = self._canonical.bits(self._bits, walk, self._accepted)
            if self._numbers is not None:
                self._bits = self._numbers.bits(self._bits, self._accepted)
        return self._bits

    def needed_bits(self) -> Bits | None:
        """The same; None where every token may come next, whatever the vocabulary's padding."""
        return self.bits()

    def mask(self) -> Bools:
        """[n] the tokens that may come next; the caller's own."""
        return unpacked(self.bits(), self.n)

    def masked(self, row: Floats) -> NextLogits:
        """A row of logits, float32 [n_vocab], with -inf for what may not come next; the row itself stays."""
        return NextLogits(masked_row(row, self.bits()))

    def forced(self, most: int) -> list[int]:
        """Accept and return the tokens, at most so many, of the text that must come next.

        They are those of the tokenizer, but for the last, which may be the begin of a longer one.
        """
        tokens: list[int] = []
        text = self._progress.forced_bytes()
        if not text:
            return tokens
        vocabulary = self._vocabulary
        last = [token for token in self._accepted[-1:] if token not in vocabulary.special]
        before = tuple(vocabulary.pieces[token] for token in last)
        ids = vocabulary.ids_behind(before, text) or vocabulary.ids_behind((), text)
        for token in ids[:-1][:most]:
            if not self.allows(token):
                break
            self.accept(token)
            tokens.append(token)
        return tokens

    def allows(self, token: int) -> bool:
        """Whether this token may come next."""
        if token in self._vocabulary.end_tokens:
            return self.may_end()
        if not 0 <= token < self.n:
            return False
        bits = self._bits  # asked for already, in the step that the token was sampled in
        if bits is not None and bits[token >> 3] >> (token & 7) & 1:
            return True
        return (bits is None or self._narrows) and self._progress.allows(token)

    @property
    def _narrows(self) -> bool:
        """Whether a mask may lack tokens that are accepted."""
        return self._canonical is not None or self._numbers is not None

    def may_end(self) -> bool:
        """Whether the text may end here."""
        return self._progress.may_end()

    def next_text(self, verb: str) -> str:
        """What may come next, in words behind a verb: a forced text, or the first characters."""
        forced = self._progress.forced_bytes().decode("utf-8", "ignore")
        if forced:
            return f"{verb} {forced[:_SHOWN]!r}"
        allowed = [byte for byte, token in enumerate(self.bytes) if token is not None and self.allows(token)]
        ascii = sorted(
            (chr(byte) for byte in allowed if byte < 0x80), key=lambda character: not character.isprintable()
        )
        texts = [repr(character) for character in ascii]
        texts = [*texts[:_LISTED], "..."] if len(texts) > _LISTED else texts
        if allowed and allowed[-1] >= 0x80:
            texts.append("a character beyond ASCII")
        if not texts:
            return "ends"
        return f"{verb} {', '.join(texts)}{' or ends' if self.may_end() else ''}"

    def accept(self, token: int) -> None:
        """Go on by a token; UsageError if it is not allowed. An end token changes nothing where it is."""
        if not self.allows(token):
            raise UsageError(
                f"{self._name}: token {token} is not possible after {len(self._accepted)} tokens"
            )
        if token in self._vocabulary.end_tokens:
            return
        self._bits = None
        self._progress.accept(token)
        self._accepted.append(token)

    def accepts(self, text: str) -> bool:
        """Whether the rest of the text may be exactly this; nothing is accepted."""
        data = text.encode("utf-8", "surrogatepass")
        trial = self.copy()
        for byte in data:
            token = self.bytes[byte]
            if token is None:
                raise UsageError(f"text: the vocabulary has no token for the byte {byte:#04x}")
            if not trial.allows(token):
                return False
            trial.accept(token)
        return trial.may_end()

    def rewind(self, n: int) -> None:
        """Take back the last n tokens."""
        if not 0 <= n <= len(self._accepted):
            raise UsageError(f"n: 0 to {len(self._accepted)} tokens can be taken back, got {n}")
        if n:
            self._bits = None
            self._progress.rewind(n)
            del self._accepted[-n:]

    def catch_up(self, ids: Sequence[int], n: int) -> None:
        """Be where the last n of `ids` lead, of which some were accepted before; more than n are taken back.

        So the state of a sequence follows preemption, rewinds and forgotten ids. UsageError as of `accept`.
        """
        if n < len(self._accepted):
            self.rewind(len(self._accepted) - n)
        for token in ids[len(ids) - (n - len(self._accepted)) :] if n > len(self._accepted) else ():
            self.accept(token)

    def copy(self) -> Matcher:
        """The same place, to go on separately."""
        copied = Matcher(self._progress.copy(), self._vocabulary, self._name, self._canonical, self._numbers)
        copied._accepted, copied._bits = list(self._accepted), self._bits
        return copied
