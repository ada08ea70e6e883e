"""Finds special tokens in a text before it is encoded.

As llama.cpp does it: the longest token first through the whole text, each splitting what is still text.
User-defined tokens are always found, control and unknown tokens only on request. Encodes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from graphml.text.tokenizer import attributes
from graphml.text.tokenizer.vocabulary import Vocabulary

SPACES = " \t\n\v\f\r"

Fragment = str | int
"""A part of the text, never empty, or the id of a special token."""


@dataclass(frozen=True)
class SpecialToken:
    """A token to look for. `left`, `right`: it includes the whitespace on that side."""

    text: str
    id: int
    left: bool
    right: bool


class SpecialTokens:
    """A set of tokens that split a text. Tokens that do not occur cost nothing."""

    def __init__(self, tokens: Iterable[SpecialToken]) -> None:
        by_length = sorted(tokens, key=lambda token: -len(token.text.encode("utf-8", "surrogatepass")))
        self._tokens = {token.text: (rank, token) for rank, token in enumerate(by_length)}
        lengths: dict[str, set[int]] = {}
        for text in self._tokens:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(sizes) for first, sizes in lengths.items()}
        self._first = re.compile(f"[{re.escape(''.join(lengths))}]") if lengths else None

    def split(self, text: str) -> list[Fragment]:
        """Return the text cut at its special tokens, in order."""
        fragments: list[Fragment] = [text] if text else []
        for token in self._occurring(text):
            cut: list[Fragment] = []
            for fragment in fragments:
                if isinstance(fragment, str):
                    _cut_out(fragment, token, cut)
                else:
                    cut.append(fragment)
            fragments = cut
        return fragments

    def _occurring(self, text: str) -> list[SpecialToken]:
        """The tokens that occur anywhere in the text, overlapping ones too, longest first."""
        if self._first is None:
            return []
        by_rank: dict[int, SpecialToken] = {}
        for match in self._first.finditer(text):
            start = match.start()
            for length in self._lengths[text[start]]:
                entry = self._tokens.get(text[start : start + length])
                if entry is not None:
                    by_rank[entry[0]] = entry[1]
        return [by_rank[rank] for rank in sorted(by_rank)]


def _cut_out(text: str, token: SpecialToken, cut: list[Fragment]) -> None:
    start = 0
    while (at := text.find(token.text, start)) >= 0:
        before = text[start:at].rstrip(SPACES) if token.left else text[start:at]
        if before:
            cut.append(before)
        cut.append(token.id)
        start = at + len(token.text)
        while token.right and start < len(text) and text[start] in SPACES:
            start += 1
    if start < len(text):
        cut.append(text[start:])


def special_tokens(vocabulary: Vocabulary, hidden: bool) -> SpecialTokens:
    """Return the vocabulary's user-defined tokens, and with `hidden` also control and unknown ones."""
    marks = vocabulary.attributes
    wanted = (marks & attributes.SPECIAL) != 0
    if not hidden:
        wanted &= (marks & attributes.HIDDEN) == 0
    return SpecialTokens(
        SpecialToken(
            vocabulary.texts[index],
            index,
            bool(marks[index] & attributes.LSTRIP),
            bool(marks[index] & attributes.RSTRIP),
        )
        for index in wanted.nonzero()[0].tolist()
    )
