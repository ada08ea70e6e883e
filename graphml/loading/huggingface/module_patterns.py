"""Matches names of modules against regular expressions of a foreign file, in bounded time.

As `re` does, by the package regex, which can be told to stop: a file's pattern could backtrack for years.
Knows names and seconds; nothing of modules.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from graphml.errors import WeightsError

LONGEST = 4096
SECONDS = 5.0
"""All matches of a file's patterns together."""


class NamePatterns:
    """The patterns of one file, whose matches share a time. WeightsError where it is over."""

    def __init__(self, path: Path) -> None:
        self._path, self._left = path, SECONDS

    def pattern(self, text: str) -> Pattern:
        """A regular expression; ValueError that says what is wrong with it."""
        return Pattern(text, self)

    def beginning(self, text: str) -> Pattern:
        """A regular expression of how names begin, as `re.match`; ValueError as of `pattern`."""
        return Pattern(f"(?:{text})(?s:.*)", self)

    def matches(self, expression: Any, name: str) -> bool:
        """Whether a compiled expression matches the whole name."""
        begin = time.monotonic()
        try:
            matched = self._left > 0 and expression.fullmatch(name, timeout=self._left) is not None
        except TimeoutError:
            matched = False
        self._left -= time.monotonic() - begin
        if self._left <= 0:
            raise WeightsError(f"{self._path}: wanted patterns of names that match in {SECONDS:.0f} s")
        return matched


class Pattern:
    """A regular expression of a file."""

    def __init__(self, text: str, patterns: NamePatterns) -> None:
        import regex  # costs every start 14 ms

        if len(text) > LONGEST:
            raise ValueError(f"a pattern of {len(text)} characters; at most {LONGEST} are allowed")
        try:
            self._whole, self._end = regex.compile(text), regex.compile(rf"(.*\.)?({text})")
        except (regex.error, RecursionError) as error:
            raise ValueError(f"{text[:80]!r}: {error}") from error
        self._patterns = patterns

    def matches(self, name: str) -> bool:
        """Whether it matches the whole name, as `re.fullmatch`."""
        return self._patterns.matches(self._whole, name)

    def ends(self, name: str) -> bool:
        r"""Whether it matches the name or its end after a dot, as `re.match(r"(.*\.)?(PATTERN)$", name)`."""
        return self._patterns.matches(self._end, name)
