"""Grammars of llguidance over the tokens of one vocabulary: JSON schemas, regular expressions, Lark.

The only file that knows llguidance, which is an extra. It never raises: errors are asked for, and raised
here.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from graphml.errors import UsageError
from graphml.sampling.structured.packed_masks import Bits, set_bits
from graphml.sampling.structured.token_bytes import TokenBytes

MAX_GRAMMAR_BYTES: Final = 4 << 20
_TOKENIZERS: WeakKeyDictionary[TokenBytes, Any] = WeakKeyDictionary()


@lru_cache(maxsize=1)
def library() -> Any:
    """The module llguidance; UsageError with what to install where it is missing."""
    try:
        import llguidance
    except ImportError as error:
        raise UsageError(
            "structured output by JSON schema, regex, Lark or choices wants the package llguidance: "
            "pip install 'llguidance>=1.9,<2' (GBNF grammars do not)"
        ) from error
    return llguidance


class _Tokens:
    """A vocabulary as llguidance asks for it."""

    def __init__(self, vocabulary: TokenBytes) -> None:
        self.tokens = list(vocabulary.pieces)
        self.eos_token_id = min(vocabulary.end_tokens)
        self.bos_token_id = None
        self.special_token_ids = sorted(vocabulary.special)
        self._of_byte = vocabulary.of_byte

    def __call__(self, text: bytes | str) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        return [token for byte in data if (token := self._of_byte[byte]) is not None]


def _tokenizer(vocabulary: TokenBytes) -> Any:
    found = _TOKENIZERS.get(vocabulary)
    if found is None:
        if not vocabulary.end_tokens:
            raise UsageError("vocab: structured output wants a vocabulary with an end-of-generation token")
        found = _TOKENIZERS[vocabulary] = library().LLTokenizer(
            library().TokenizerWrapper(_Tokens(vocabulary)), eos_token=sorted(vocabulary.end_tokens)
        )
    return found


class LlguidanceStructure:
    """A compiled grammar of llguidance, as `Structure` describes; `error`: why there is none, or empty."""

    def __init__(self, grammar: str, vocabulary: TokenBytes) -> None:
        self.error = ""
        self._vocabulary = vocabulary
        if len(grammar) > MAX_GRAMMAR_BYTES:
            self.error = f"at most {MAX_GRAMMAR_BYTES} characters are supported, it has {len(grammar)}"
            return
        limits = library().LLParserLimits(verbose_errors=False)
        self._matcher = library().LLMatcher(_tokenizer(vocabulary), grammar, log_level=0, limits=limits)
        if self._matcher.is_error():
            self.error = str(self._matcher.get_error()) or "llguidance gives no reason"

    def begin(self) -> LlguidanceProgress:
        """The place before the first token."""
        return LlguidanceProgress(self._matcher.deep_copy(), self._vocabulary)


class LlguidanceProgress:
    """One text's place in a grammar of llguidance."""

    def __init__(self, matcher: Any, vocabulary: TokenBytes) -> None:
        self._matcher, self._vocabulary = matcher, vocabulary
        self._ends = sorted(vocabulary.end_tokens)

    def bits(self) -> Bits:
        """The tokens that may come next, end tokens included; computed without the interpreter's lock."""
        found = np.zeros((self._vocabulary.n + 31) // 32, np.int32)
        self._matcher.unsafe_compute_mask_ptr(found.ctypes.data, found.nbytes)
        self._check()
        bits = found.view(np.uint8)[: (self._vocabulary.n + 7) // 8]
        set_bits(bits, self._ends, self.may_end())
        return bits

    def forced_bytes(self) -> bytes:
        """The only bytes by which the text can go on."""
        found = bytes(self._matcher.compute_ff_bytes())
        return b"" if found and self.may_end() else found

    def allows(self, token: int) -> bool:
        """Whether this token may come next."""
        found = self._matcher.validate_tokens([token]) == 1
        self._check()
        return bool(found)

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
        return LlguidanceProgress(self._matcher.deep_copy(), self._vocabulary)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise UsageError(f"structured output: {self._matcher.get_error()}")
