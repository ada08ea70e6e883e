"""N-gram lookup: drafts are what followed the latest ids when they occurred before, in prompt or output.

After prompt lookup decoding (Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding) and llama.cpp's
`ngram-simple`; the longest of the latest occurrences counts. Knows ids; nothing of models or steps.
"""

from __future__ import annotations

from collections.abc import Sequence

SHORTEST = 3
"""Ids that an occurrence has in common with the end of the text, at least."""
LONGEST = 12
"""More ids in common are no better."""
_OCCURRENCES = 4  # that are compared, the latest ones


class NgramLookup:
    """The places of every `SHORTEST` ids in a row of one sequence, kept up to date as it grows."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._ends: dict[tuple[int, ...], list[int]] = {}  # ids -> the numbers of ids up to their ends
        self._n, self._last = 0, -1

    def find(self, ids: Sequence[int], count: int) -> tuple[list[int], int]:
        """Up to `count` ids that may follow, and how many ids (up to `LONGEST`) they were found by; 0: none.

        ids: all of the sequence, of which others may have been taken away since the call before.
        """
        self._catch_up(ids)
        n = len(ids)
        best, length = -1, 0
        for end in reversed(self._ends.get(tuple(ids[-SHORTEST:]), ())):
            same = SHORTEST
            while same < LONGEST and same < end and ids[end - same - 1] == ids[n - same - 1]:
                same += 1
            if same > length:
                best, length = end, same
        if best < 0:
            return [], 0
        draft = list(ids[best : best + count])
        while len(draft) < count:  # the text repeats itself at its end: so does the draft
            draft += draft[: count - len(draft)]
        return draft, length

    def _catch_up(self, ids: Sequence[int]) -> None:
        """Know all places but that of the last ids, which nothing follows yet."""
        if len(ids) < self._n or (self._n and ids[self._n - 1] != self._last):
            self._clear()
        for end in range(max(self._n, SHORTEST), len(ids)):
            places = self._ends.setdefault(tuple(ids[end - SHORTEST : end]), [])
            places.append(end)
            if len(places) > _OCCURRENCES:
                del places[0]
        self._n = len(ids)
        self._last = ids[-1] if ids else -1
