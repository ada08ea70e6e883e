"""Splits a text into words by a chain of steps, each of which splits the parts of the step before.

A step is a regular expression or a function. An expression isolates its matches; the text between them
stays whole. It is applied to each part alone, so lookahead stops at the part's end. An
expression that names a category of letters runs on the reduced text (one byte per code point), one that
does not on the text itself with every space beyond ASCII turned into a vertical tab; classes of spaces,
digits and word ends are ASCII in both. These are the semantics of the rules as llama.cpp applies them.
Knows nothing of vocabularies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

from graphml.text.tokenizer.unicode_classes import WHITESPACE, category_members, reduce


@dataclass(frozen=True)
class Views:
    """One text in the forms that steps use; all have one element per character."""

    text: str

    @cached_property
    def spaced(self) -> str:
        r"""The text with whitespace beyond ASCII turned into \v."""
        return self.text if self.text.isascii() else _WIDE_SPACE.sub("\v", self.text)

    @cached_property
    def reduced(self) -> bytes:
        """The text as one byte per character, its category."""
        return reduce(self.text)

    @cached_property
    def reduced_han(self) -> bytes:
        """`reduced` with a byte of its own for Chinese characters."""
        return reduce(self.text, han=True)


Step = str | Callable[[Views, list[int]], list[int]]
"""An expression, or a function from the ends of the parts to the ends of smaller parts."""

_WIDE_SPACE = re.compile(f"[{''.join(map(chr, (space for space in WHITESPACE if space > 0x7F)))}]")
_DIGITS = re.compile(rb"[0-9]+")
_CATEGORY = re.compile(r"\\p\{(\w+)\}|\\.|[\[\]]", re.DOTALL)


def split(text: str, steps: Sequence[Step]) -> list[str]:
    """Return the words of a text: non-empty, in order, together the whole text."""
    views = Views(text)
    ends = [len(text)]
    for step in steps:
        ends = _isolate(views, ends, step) if isinstance(step, str) else step(views, ends)
    start = 0
    words = []
    for end in ends:
        words.append(text[start:end])
        start = end
    return words


def _isolate(views: Views, ends: list[int], expression: str) -> list[int]:
    """The ends of the parts after every match of the expression is split off."""
    find = _finder(views, expression)
    cut: list[int] = []
    start = 0
    for end in ends:
        for match in find(start, end):
            first, last = match.span()
            if first > start:
                cut.append(first)
            if last > first:
                cut.append(last)
            start = last
        if start < end:
            cut.append(end)
        start = end
    return cut


def _finder(views: Views, expression: str) -> Callable[[int, int], Iterable[re.Match[Any]]]:
    """A search between two positions, in the form of the text that the expression needs."""
    if r"\p{" not in expression:
        return partial(_plain_pattern(expression).finditer, views.spaced)
    subject = views.reduced_han if r"\p{Han}" in expression else views.reduced
    return partial(_category_pattern(expression).finditer, subject)


@cache
def _plain_pattern(expression: str) -> re.Pattern[str]:
    return re.compile(expression, re.ASCII)


@cache
def _category_pattern(expression: str) -> re.Pattern[bytes]:
    r"""Compile an expression for reduced texts, each \p{...} replaced by its members."""
    inside = False

    def expand(match: re.Match[str]) -> str:
        nonlocal inside
        whole, name = match.group(0), match.group(1)
        if name is not None:
            members = category_members(name)
            return members if inside else f"[{members}]"
        if whole in "[]":
            inside = whole == "["
        return whole

    return re.compile(_CATEGORY.sub(expand, expression).encode("latin-1"))


def numbers_by_thousands(views: Views, ends: list[int]) -> list[int]:
    r"""Split runs of \p{N} in threes counted from their end; text before a run stays with its first group."""
    runs = _category_pattern(r"\p{N}+")
    cut: list[int] = []
    start = 0
    for end in ends:
        for run in runs.finditer(views.reduced, start, end):
            first, start = run.span()
            cut.extend(range(first + ((start - first) % 3 or 3), start + 1, 3))
        if start < end:
            cut.append(end)
        start = end
    return cut


def digits_by_thousands(views: Views, ends: list[int]) -> list[int]:
    """Split wherever a multiple of three ASCII digits follows up to the end of their run."""
    cut: list[int] = []
    start = 0
    for end in ends:
        for run in _DIGITS.finditer(views.reduced, start, end):
            first, stop = run.span()
            cut.extend(at for at in range(first + (stop - first) % 3, stop, 3) if at > start)
        cut.append(end)
        start = end
    return cut
