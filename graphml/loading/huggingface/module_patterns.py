"""Matches names of modules against regular expressions of foreign files, in bounded time.

Python's `re` backtracks: a file's pattern could keep it for years. Here the places that a match may have
come to are a set, so that the time grows with the product of both lengths. Knows characters, `.`, escapes,
classes, `^`, `$`, groups, `|` and repetitions; anything else is an error. Knows nothing of modules.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Places = frozenset[int]
Matcher = Callable[[str, Places], Places]
LONGEST = 4096
_ATOM = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]|\\[.dDwWsSbB\-_/\[\](){}|*+?^$\\]|[^\\\[()|*+?{}]", re.DOTALL)
_REPEAT = re.compile(r"(\*|\+|\?|\{(\d{0,3})(,?)(\d{0,3})\})[?]?(?![*+?{])")
_DEEPEST = 32


class Pattern:
    """A regular expression; ValueError that says what in it is not known."""

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST:
            raise ValueError(f"a pattern of {len(text)} characters; at most {LONGEST} are allowed")
        self._text, self._at, self._depth = text, 0, 0
        self._match = self._alternatives()
        if self._at < len(text):
            raise self._unknown()

    def matches(self, name: str) -> bool:
        """Whether it matches the whole name, as `re.fullmatch`."""
        return len(name) in self._match(name, frozenset((0,)))

    def ends(self, name: str) -> bool:
        r"""Whether it matches the name or its end after a dot, as `re.match(r"(.*\.)?(PATTERN)$", name)`."""
        starts = frozenset((0, *(i + 1 for i, character in enumerate(name) if character == ".")))
        return len(name) in self._match(name, starts)

    def _unknown(self) -> ValueError:
        return ValueError(f"{self._text[self._at :][:40]!r} in {self._text[:80]!r} is not understood")

    def _alternatives(self) -> Matcher:
        branches = [self._sequence()]
        while self._text[self._at : self._at + 1] == "|":
            self._at += 1
            branches.append(self._sequence())
        return lambda name, places: frozenset().union(*(branch(name, places) for branch in branches))

    def _sequence(self) -> Matcher:
        parts: list[Matcher] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts.append(self._repeated(self._part()))

        def match(name: str, places: Places) -> Places:
            for part in parts:
                places = part(name, places)
            return places

        return match

    def _part(self) -> Matcher:
        if self._text[self._at] == "(":
            self._at += 3 if self._text.startswith("(?:", self._at) else 1
            self._depth += 1
            if self._depth > _DEEPEST or self._text[self._at : self._at + 1] in ("?", "*"):
                raise self._unknown()
            inner = self._alternatives()
            if self._text[self._at : self._at + 1] != ")":
                raise self._unknown()
            self._at, self._depth = self._at + 1, self._depth - 1
            return inner
        atom = _ATOM.match(self._text, self._at)
        if atom is None:
            raise self._unknown()
        self._at = atom.end()
        single = re.compile(atom[0], re.DOTALL)

        def match(name: str, places: Places) -> Places:
            found_at = (single.match(name, place) for place in places)
            return frozenset(match.end() for match in found_at if match is not None)

        return match

    def _repeated(self, part: Matcher) -> Matcher:
        repeat = _REPEAT.match(self._text, self._at)
        if repeat is None:
            return part
        self._at = repeat.end()
        least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(repeat[1], (0, 0))
        if repeat[1].startswith("{"):
            least = int(repeat[2] or 0)
            most = int(repeat[4]) if repeat[4] else None if repeat[3] else least
            if not (repeat[2] or repeat[4]) or (most is not None and most < least):
                raise self._unknown()

        def match(name: str, places: Places) -> Places:
            for _ in range(least):
                places = part(name, places)
            reached, count = places, least
            while places and (most is None or count < most):
                places = part(name, places) - reached
                reached, count = reached | places, count + 1
            return reached

        return match
