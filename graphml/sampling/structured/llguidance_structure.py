"""Grammars of llguidance over the tokens of one vocabulary: JSON schemas, regular expressions, Lark.

A place in such a grammar can also be moved by bytes, behind the tokens of a text. The only file that imports
llguidance. It never raises: errors are asked for, and raised here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

import numpy as np

from graphml.errors import UsageError
from graphml.sampling.structured.literal_texts import UNREADABLE
from graphml.sampling.structured.packed_masks import Bits, set_bits, unpacked
from graphml.sampling.structured.token_bytes import TokenBytes

_CONTROL: Final = b"\xff"
"""Before the id of a control token in the bytes that llguidance gives; no text has this byte."""


def first_byte(vocabulary: TokenBytes) -> int:
    """The id of byte 0 behind the tokens of a vocabulary, the others behind it; a multiple of 8."""
    return -(-vocabulary.n // 8) * 8


class LlguidanceWalk:
    """A place in a grammar of llguidance that is moved by bytes, as `ByteWalk` describes."""

    def __init__(self, matcher: Any, vocabulary: TokenBytes) -> None:
        self._matcher, self._vocabulary = matcher, vocabulary
        self._tokens: list[int] = []  # the text so far, as the matcher consumed it
        self._first = first_byte(vocabulary)
        self._bits = np.zeros((self._first + 256 + 31) // 32, np.int32)
        self._controls = np.zeros(self._first // 8, np.uint8)
        set_bits(self._controls, vocabulary.special | vocabulary.end_tokens, True)

    def catch_up(self, tokens: Sequence[int]) -> bool:
        """Be where these tokens lead; whether that is possible."""
        n = len(self._tokens)
        while n and (n > len(tokens) or self._tokens[n - 1] != tokens[n - 1]):
            n -= 1
        self.back(sum(map(self._length, self._tokens[n:])))
        for token in tokens[n:]:
            if token in self._vocabulary.special:
                self._matcher.consume_token(token)
            else:
                self.go(self._vocabulary.pieces[token])
        self._tokens = list(tokens)
        return not self._matcher.is_error()

    def _length(self, token: int) -> int:
        return 1 if token in self._vocabulary.special else len(self._vocabulary.pieces[token])

    def copy(self) -> LlguidanceWalk:
        """The same place, to go on separately."""
        copied = LlguidanceWalk(self._matcher.deep_copy(), self._vocabulary)
        copied._tokens = self._tokens
        return copied

    def forced(self) -> bytes:
        """The only bytes by which the text can go on."""
        if self._matcher.is_accepting():
            return b""
        return bytes(self._matcher.compute_ff_bytes()).partition(_CONTROL)[0]

    def ways(self) -> tuple[Sequence[int], bool]:
        """The bytes that may come next, and whether the text may stop here."""
        if self._matcher.is_error():  # which counts as stopped, too
            return UNREADABLE
        if self._matcher.is_stopped():
            return [], True
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        bits, n = self._bits.view(np.uint8), self._first // 8
        stops = bool(self._matcher.is_accepting() or (bits[:n] & self._controls).any())
        return np.flatnonzero(unpacked(bits[n : n + 32], 256)).tolist(), stops

    def go(self, data: bytes) -> None:
        """Go on by bytes that are allowed."""
        self._matcher.consume_tokens([self._first + byte for byte in data])

    def back(self, n: int) -> None:
        """Take back the last n bytes."""
        self._matcher.rollback(n)


MAX_GRAMMAR_BYTES: Final = 4 << 20
_TOKENIZERS: WeakKeyDictionary[TokenBytes, dict[type, Any]] = WeakKeyDictionary()


@lru_cache(maxsize=1)
def library() -> Any:
    """The module llguidance, imported when a structure first wants it."""
    import llguidance

    return llguidance


class _Tokens:
    """A vocabulary as llguidance asks for it: its tokens, and the ids of a text by its tokenizer."""

    def __init__(self, vocabulary: TokenBytes) -> None:
        self.tokens = list(vocabulary.pieces)
        self.eos_token_id = min(vocabulary.end_tokens)
        self.bos_token_id = None
        self.special_token_ids = sorted(vocabulary.special)
        self._of_byte = vocabulary.of_byte
        self._vocabulary = ref(vocabulary)  # which keeps this

    def __call__(self, text: bytes | str) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        vocabulary = self._vocabulary()
        ids = [] if vocabulary is None else vocabulary.ids_behind((), data)
        if ids and sum(len(self.tokens[token_id]) for token_id in ids) == len(data):
            return ids
        return [token for byte in data if (token := self._of_byte[byte]) is not None]


class _Bytes:
    """The same vocabulary, but the texts of its tokens are empty, and behind them comes each single byte."""

    def __init__(self, vocabulary: TokenBytes) -> None:
        named = vocabulary.special | vocabulary.end_tokens
        named_pieces = [piece if token in named else b"" for token, piece in enumerate(vocabulary.pieces)]
        self._first = first_byte(vocabulary)
        padding = [b""] * (self._first - vocabulary.n)
        self.tokens = [*named_pieces, *padding, *(bytes([byte]) for byte in range(256))]
        self.eos_token_id = min(vocabulary.end_tokens)
        self.bos_token_id = None
        self.special_token_ids = sorted(vocabulary.special)

    def __call__(self, text: bytes | str) -> list[int]:
        return [self._first + byte for byte in (text.encode() if isinstance(text, str) else text)]


def _tokenizer(vocabulary: TokenBytes, kind: type[_Tokens] | type[_Bytes] = _Tokens) -> Any:
    kinds = _TOKENIZERS.setdefault(vocabulary, {})
    if kind not in kinds:
        if not vocabulary.end_tokens:
            raise UsageError("vocab: structured output wants a vocabulary with an end-of-generation token")
        kinds[kind] = library().LLTokenizer(
            library().TokenizerWrapper(kind(vocabulary)), eos_token=sorted(vocabulary.end_tokens)
        )
    return kinds[kind]


class LlguidanceStructure:
    """A compiled grammar of llguidance, as `Structure` describes; `error`: why there is none, or empty."""

    def __init__(self, grammar: str, vocabulary: TokenBytes) -> None:
        self.error = ""
        self._vocabulary = vocabulary
        self._grammar = grammar
        self._of_bytes: Any = None
        if len(grammar) > MAX_GRAMMAR_BYTES:
            self.error = f"at most {MAX_GRAMMAR_BYTES} characters are supported, it has {len(grammar)}"
            return
        self._matcher = self._compiled(_Tokens)
        if self._matcher.is_error():
            self.error = str(self._matcher.get_error()) or "llguidance gives no reason"

    def begin(self) -> LlguidanceProgress:
        """The place before the first token."""
        return LlguidanceProgress(self._matcher.deep_copy(), self._vocabulary, self)

    def of_bytes(self) -> Any:
        """A matcher at the begin of a text, over single bytes; compiled when it is first asked for."""
        if self._of_bytes is None:
            self._of_bytes = self._compiled(_Bytes)
        return self._of_bytes.deep_copy()

    def _compiled(self, kind: type[_Tokens] | type[_Bytes]) -> Any:
        limits = library().LLParserLimits(verbose_errors=False)
        return library().LLMatcher(
            _tokenizer(self._vocabulary, kind), self._grammar, log_level=0, limits=limits
        )


class LlguidanceProgress:
    """One text's place in a grammar of llguidance."""

    def __init__(self, matcher: Any, vocabulary: TokenBytes, structure: LlguidanceStructure) -> None:
        self._matcher, self._vocabulary, self._structure = matcher, vocabulary, structure
        self._ends = sorted(vocabulary.end_tokens)
        self._walk: LlguidanceWalk | None = None  # made when it is first asked for

    def walk(self, accepted: Sequence[int]) -> LlguidanceWalk | None:
        """The place behind the accepted tokens as one that is moved by bytes; None where that fails."""
        if self._walk is None:
            self._walk = LlguidanceWalk(self._structure.of_bytes(), self._vocabulary)
        return self._walk if self._walk.catch_up(accepted) else None

    def bits(self) -> Bits:
        """The tokens that may come next, end tokens included; computed without the interpreter's lock."""
        words = np.zeros((self._vocabulary.n + 31) // 32, np.int32)
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        self._check()
        bits = words.view(np.uint8)[: (self._vocabulary.n + 7) // 8]
        set_bits(bits, self._ends, self.may_end())
        return bits

    def forced_bytes(self) -> bytes:
        """The only bytes by which the text can go on."""
        forced = bytes(self._matcher.compute_ff_bytes())
        return b"" if forced and self.may_end() else forced

    def allows(self, token: int) -> bool:
        """Whether this token may come next."""
        is_valid = self._matcher.validate_tokens([token]) == 1
        self._check()
        return bool(is_valid)

    def may_end(self) -> bool:
        """Whether the text may end here."""
        return bool(self._matcher.is_accepting())

    def accept(self, token: int) -> None:
        """Go on by a token that is allowed."""
        self._matcher.consume_token(token)
        self._check()

    def rewind(self, n: int) -> None:
        """Take back the last n tokens."""
        self._matcher.rollback(n)
        self._check()

    def copy(self) -> LlguidanceProgress:
        """The same place, to go on separately."""
        copied = LlguidanceProgress(self._matcher.deep_copy(), self._vocabulary, self._structure)
        copied._walk = None if self._walk is None else self._walk.copy()
        return copied

    def _check(self) -> None:
        if self._matcher.is_error():
            raise UsageError(f"structured output: {self._matcher.get_error()}")
