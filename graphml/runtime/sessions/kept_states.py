"""Which tokens the recurrent states of a pinned sequence have read, and which copies of them there are.

A recurrent state cannot be cut back: a sequence that is rewound goes on from a copy, or from its first token.
Ctrl-C may end any change between two byte codes, so each is one store, in an order that leaves what is true:

1. `read` is how many of the tokens that a sequence's cells hold made its states; -1 while they change.
2. A copy of so many tokens is recorded only when it is complete, and forgotten before any of these tokens is.
3. A sequence holds as many tokens as its states have read, or as a copy has, or none, or what it holds behind
   them belongs to no commit (`graphml.runtime.sessions.committed`).

Knows numbers of tokens and copies; nothing of arrays or ids.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KeptCopy:
    """Copy number `at` of a sequence: its states after `n` tokens."""

    n: int
    at: int


class KeptStates:
    """Of one recurrent sequence."""

    def __init__(self) -> None:
        self.read = 0
        self._copies: tuple[KeptCopy, ...] = ()  # the earliest first

    def begin(self, n: int) -> bool:
        """A step changes the states of the sequence, which held `n` tokens; whether they were theirs."""
        are_right = n in (0, self.read)
        self.read = -1
        return are_right

    def reach(self, n: int) -> int:
        """How many of its first `n` tokens a sequence keeps where the others are forgotten.

        Copies of more are forgotten.
        """
        if self.read != n:
            n = max([0, *[kept.n for kept in self._copies if kept.n <= n]])
            self.read = -1
        self._copies = tuple([kept for kept in self._copies if kept.n <= n])
        return n

    def to_restore(self, n: int) -> KeptCopy | None:
        """The copy that the states of a sequence of `n` tokens are to be; None where they are right."""
        if n in (0, self.read):
            return None
        return {kept.n: kept for kept in self._copies}[n]

    def to_keep(self, n: int, most: int) -> KeptCopy | None:
        """A copy to be made of the states of `n` tokens, one of `most`; None where there is one, or no need.

        The earliest is forgotten where there are as many; `kept` tells that the copy is made.
        """
        copies = self._copies
        if n in [0, *[kept.n for kept in copies]] or self.read != n or not most:
            return None
        own = [kept for kept in copies if kept.at < most]
        if len(own) >= most:
            earliest = own.pop(0)
            self._copies = tuple([kept for kept in copies if kept is not earliest])
        return KeptCopy(n, min(set(range(most)) - {kept.at for kept in own}))

    def to_keep_in(self, at: int, n: int) -> KeptCopy | None:
        """The same for one place that `to_keep` does not use, whose copy is forgotten; None: there is one."""
        if n in [0, *[kept.n for kept in self._copies]] or self.read != n:
            return None
        self._copies = tuple([kept for kept in self._copies if kept.at != at])
        return KeptCopy(n, at)

    def kept(self, copy: KeptCopy) -> None:
        """The copy is made."""
        self._copies = (*self._copies, copy)
