"""Whose turn a step is, where requests with different compile options cannot share one.

Requests without options have every other step, however many kinds of others there are; those share the rest
in turn. So a token of a request without options waits for one step of others, and one of m kinds for m - 1
steps of those and as many of the first. Each request that patches is a kind of its own.

Knows sequences; nothing of blocks or rows.
"""

from __future__ import annotations

from collections.abc import Iterable

from graphml.runtime.blocks.sequence import Company, Sequence


class Turns:
    """The latest turns of those that share steps."""

    def __init__(self) -> None:
        self._latest: dict[Company, int] = {}
        self._n, self._was_plain = 0, True

    def order(self, sequences: Iterable[Sequence]) -> list[Company]:
        """Who has sequences that share a step, those whose turn is next first. New ones come last."""
        kinds = dict.fromkeys(sequence.company for sequence in sequences)
        if kinds.keys() <= {None}:
            self._latest.clear()
            return [None]
        self._latest = {kind: self._latest.get(kind, self._n) for kind in kinds}
        return sorted(kinds, key=lambda kind: ((kind is None) == self._was_plain, self._latest[kind]))

    def had(self, kind: Company) -> None:
        """A step was planned for these."""
        self._n += 1
        self._latest[kind], self._was_plain = self._n, kind is None
