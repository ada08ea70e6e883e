"""Which tokens the recurrent states of a session's sequences have read, and which copies of them there are.

A recurrent state cannot be cut back: a sequence that is rewound goes on from a copy, or from its first token.
Ctrl-C may end any change between two byte codes, so each is one store, in an order that leaves what is true:

1. `read` is how many of the tokens that a sequence's cells hold made its states; -1 while they change.
2. A copy of so many tokens is recorded only when it is complete, and forgotten before any of these tokens is.
3. A sequence holds as many tokens as its states have read, or as a copy has, or none, or what it holds behind
   them belongs to no commit (`graphml.runtime.committed`).

Knows numbers of tokens and copies; nothing of arrays or ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Kept:
    """Copy number `at` of a sequence: its states after `n` tokens."""

    n: int
    at: int


class KeptStates:
    """Of the recurrent sequences of one cache."""

    def __init__(self, n_sequences: int) -> None:
        self.read = [0] * n_sequences
        self._copies: list[tuple[Kept, ...]] = [()] * n_sequences  # the earliest first

    def begin(self, starts: Mapping[int, int]) -> list[int]:
        """A step changes the states of sequences that held so many tokens; those whose states are theirs."""
        right = [sequence for sequence, n in starts.items() if n in (0, self.read[sequence])]
        for sequence in starts:
            self.read[sequence] = -1
        return right

    def end(self, right: Iterable[int], lengths: list[int]) -> None:
        """The step is done: the states of those that `begin` has returned have read so many."""
        for sequence in right:
            self.read[sequence] = lengths[sequence]

    def reach(self, sequence: int, n: int) -> int:
        """How many of its first `n` tokens a sequence keeps where the others are forgotten.

        Copies of more are forgotten.
        """
        if self.read[sequence] != n:
            n = max([0, *[one.n for one in self._copies[sequence] if one.n <= n]])
            self.read[sequence] = -1
        self._copies[sequence] = tuple([one for one in self._copies[sequence] if one.n <= n])
        return n

    def to_restore(self, sequence: int, n: int) -> Kept | None:
        """The copy that the states of a sequence of `n` tokens are to be; None where they are right."""
        if n in (0, self.read[sequence]):
            return None
        return {one.n: one for one in self._copies[sequence]}[n]

    def to_keep(self, sequence: int, n: int, most: int) -> Kept | None:
        """A copy to be made of the states of `n` tokens, one of `most`; None where there is one, or no need.

        The earliest is forgotten where there are as many; `kept` tells that the copy is made.
        """
        copies = self._copies[sequence]
        if n in [0, *[one.n for one in copies]] or self.read[sequence] != n or not most:
            return None
        own = [one for one in copies if one.at < most]
        if len(own) >= most:
            earliest = own.pop(0)
            self._copies[sequence] = tuple([one for one in copies if one is not earliest])
        return Kept(n, min(set(range(most)) - {one.at for one in own}))

    def to_keep_in(self, at: int, sequence: int, n: int) -> Kept | None:
        """The same for one place that `to_keep` does not use, whose copy is forgotten; None: there is one."""
        if n in [0, *[one.n for one in self._copies[sequence]]] or self.read[sequence] != n:
            return None
        self._copies[sequence] = tuple([one for one in self._copies[sequence] if one.at != at])
        return Kept(n, at)

    def kept(self, sequence: int, copy: Kept) -> None:
        """The copy is made."""
        self._copies[sequence] = (*self._copies[sequence], copy)
