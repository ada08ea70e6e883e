"""The tokenizer of a tokenizer.json, run by the `tokenizers` library: its ids, exactly.

Pieces, roles and decoding are those of every vocabulary; see `graphml.loading.huggingface.tokenizer_files`
for its metadata. Knows the library's two modes; nothing of files.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from graphml.errors import TokenizerError
from graphml.options.argument_checks import text_of
from graphml.text.tokenizer.tokenizer import Tokenizer, well_formed
from graphml.text.tokenizer.vocabulary import Vocabulary

KEY = "tokenizer.huggingface.json"


class HuggingFaceTokenizer(Tokenizer):
    """Text to ids by the library, ids to text like every tokenizer. Safe to share between threads."""

    def __init__(self, vocabulary: Vocabulary, json: str) -> None:
        super().__init__(vocabulary, None)
        self._json = json

    def encode(self, text: str, add_special: bool = True, parse_special: bool | None = None) -> list[int]:
        """As of `Tokenizer.encode`; add_special adds what the file's post-processor adds.

        parse_special: None is the library's own habit, which finds control tokens.
        """
        tokenizer = self._plain if parse_special is False else self._parsing
        ids: list[int] = tokenizer.encode(
            well_formed(text_of("text", text)), add_special_tokens=add_special
        ).ids
        return ids

    def pair(self, query: str, text: str) -> list[int]:
        """As of `Tokenizer.pair`, with what the file's post-processor adds."""
        ids: list[int] = self._pair(query, text).ids
        return ids

    def pair_kinds(self, query: str, text: str) -> list[int]:
        """As of `Tokenizer.pair_kinds`, as the file's post-processor has them."""
        kinds: list[int] = self._pair(query, text).type_ids
        return kinds

    def _pair(self, query: str, text: str) -> Any:
        first, second = (
            well_formed(text_of(name, value)) for name, value in (("query", query), ("text", text))
        )
        return self._plain.encode(first, second, add_special_tokens=True)

    @cached_property
    def _parsing(self) -> Any:
        return self._made(special_as_text=False)

    @cached_property
    def _plain(self) -> Any:
        return self._made(special_as_text=True)

    def _made(self, special_as_text: bool) -> Any:
        """The library's tokenizer; it has special tokens found, or read as text, in all calls alike."""
        from tokenizers import Tokenizer as Library  # not needed for other files, and slow to import

        try:
            tokenizer = Library.from_str(self._json)
        except Exception as error:  # the library raises nothing more special
            raise TokenizerError(f"{KEY}: the `tokenizers` library refuses it: {str(error)[:200]}") from None
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = special_as_text
        return tokenizer
