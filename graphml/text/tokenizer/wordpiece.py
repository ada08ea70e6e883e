"""WordPiece (`tokenizer.ggml.model` = `bert`): words split at spaces and punctuation, longest token first.

GGUF's tokens have U+2581 at the start of a word and nothing inside it. Written out, because the
`tokenizers` library gives up on words over a length limit and takes quadratic time without one.
"""

from __future__ import annotations

from typing import Final

from graphml.errors import TokenizerError
from graphml.text.tokenizer.unicode_classes import WHITESPACE, base_character, group, lowercase
from graphml.text.tokenizer.vocabulary import PREFIX, Vocabulary, lengths_by_first
from graphml.text.tokenizer.words import WordCache

# Chinese characters become words of their own. The sixth range begins late, like in the original.
CHINESE: Final = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip
WORD_START: Final = "\u2581"


class WordPieceEncoder:
    """Encodes fragments of text with one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        if vocabulary.roles.unknown is None:
            raise TokenizerError(f"{PREFIX}unknown_token_id: WordPiece wants an unknown token, there is none")
        self._unknown = vocabulary.roles.unknown
        self._ids = vocabulary.ids
        self._lowercase = vocabulary.flags.lowercase
        self._strip_accents = vocabulary.flags.strip_accents
        shortest_first = lengths_by_first(vocabulary.texts)
        self._lengths = {first: sizes[::-1] for first, sizes in shortest_first.items()}
        self._characters: dict[str, tuple[bool, str]] = {}
        self._words = WordCache(self._encode_word)

    def encode(self, text: str, after_special: bool) -> list[int]:
        """Return the ids of a fragment; they do not depend on its position."""
        words: list[str] = []
        word = ""
        known = self._characters
        for character in text:
            if character not in known:
                known[character] = self._reduced(character)
            ends, spelled = known[character]
            if not ends:
                word += spelled
                continue
            words += (word, spelled)
            word = ""
        words.append(word)
        return self._words.encode(filter(None, words))

    def _reduced(self, character: str) -> tuple[bool, str]:
        """Whether a character ends the word before it, and the character's normalised form."""
        if self._strip_accents:
            character = base_character(character)
        code, category = ord(character), group(character)
        if code in WHITESPACE:
            return True, ""
        if code in (0, 0xFFFD) or category == "C" or (self._strip_accents and category == "M"):
            return False, ""
        alone = category == "P" or (code < 0x7F and category == "S") or _is_chinese(code)
        return alone, lowercase(character) if self._lowercase else character

    def _encode_word(self, word: str) -> list[int]:
        word = WORD_START + word
        ids: list[int] = []
        start = 0
        while start < len(word):
            for length in self._lengths.get(word[start], ()):
                if start + length > len(word):
                    continue
                token = self._ids.get(word[start : start + length])
                if token is not None:
                    ids.append(token)
                    start += length
                    break
            else:
                return [self._unknown]
        return ids


def _is_chinese(code: int) -> bool:
    return any(first <= code <= last for first, last in CHINESE)
