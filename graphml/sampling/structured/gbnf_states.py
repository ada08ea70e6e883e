"""A pushdown automaton of GBNF rules over bytes, with states made when they are first reached.

A state is a set of stacks, as in llama.cpp, and what is known of a code point that has begun. Stacks share
their tails and are numbered, equal sets are one state, and the row of a state's 256 successors is made once:
matching and masks are table look-ups. Knows rules and bytes; nothing of tokens, except elements that are one
token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Final, NamedTuple

import numpy as np

from graphml.errors import UsageError
from graphml.sampling.structured.gbnf_rules import LAST_VALUE, Characters, OneToken, RuleReference, Rules
from graphml.sampling.structured.token_bytes import Ints

DEAD: Final = -1
UNKNOWN: Final = -2
MAX_STACKS: Final = 20_000
"""Stacks of one state; an ambiguous grammar has many, one that is made to hurt has more."""
MAX_STATES: Final = 30_000
"""States of one table, at 1 KiB each; whoever needs more begins a new table."""
_END: Final = -1
_ANY: Final = -1  # a begun code point whose value no longer matters


class TooManyStatesError(UsageError):
    """The table is full: the text has to be matched again in a new one."""


class PartialCodePoint(NamedTuple):
    """A code point that has begun: its bits so far (or _ANY) and the number of bytes that are missing."""

    value: int
    missing: int


NOTHING: Final = PartialCodePoint(0, 0)


class GbnfStates:
    """States of one grammar, shared by all who match it. Thread-safe."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._lock = Lock()
        self._elements: list[Characters | OneToken | int] = []
        self._starts: list[list[int]] = []  # of each rule: where its alternatives begin in _elements
        for rule in range(len(rules.names)):
            self._starts.append([])
            for alternative in rules.defined(rule):
                self._starts[rule].append(len(self._elements))
                for element in alternative:
                    self._elements.append(element.rule if isinstance(element, RuleReference) else element)
                self._elements.append(_END)
        self._stacks: list[tuple[int, int]] = [(_END, 0)]  # stack 0 is empty; others: (position, stack below)
        self._stack_of: dict[tuple[int, int], int] = {}
        self._closed: dict[int, tuple[int, ...]] = {0: (0,)}
        self._states: list[tuple[tuple[int, ...], PartialCodePoint]] = []
        self._state_of: dict[tuple[tuple[int, ...], PartialCodePoint], int] = {}
        self.table: Ints = np.full((256, 256), UNKNOWN, np.int32)
        self._known: list[bool] = []
        tops: set[int] = set()
        for start in self._starts[self._rules.root]:
            tops.update(self._closure(self._pushed(start, 0)))
        self.start = self._state(tops, NOTHING)

    def may_end(self, state: int) -> bool:
        """Whether a text may end in this state."""
        stacks, begun = self._states[state]
        return 0 in stacks and begun.missing == 0

    def row(self, state: int) -> Ints:
        """[256] the state after each byte, DEAD where the byte is not possible."""
        if not self._known[state]:
            with self._lock:
                if not self._known[state]:
                    self._make_row(state)
        row: Ints = self.table[state]
        return row

    def fill_rows(self, states: Iterable[int]) -> None:
        """Make the rows of states, so that `table` has them."""
        for state in states:
            self.row(state)

    def token_elements(self, state: int) -> list[OneToken]:
        """Elements of this state that are one token."""
        tops = (self._elements[self._stacks[stack][0]] for stack in self._states[state][0] if stack)
        return [top for top in tops if isinstance(top, OneToken)]

    def after_token(self, state: int, token: int, reached: int) -> int:
        """The state after a token, whose bytes alone lead to `reached` (or DEAD)."""
        with self._lock:
            tops: set[int] = set()
            for stack in self._states[state][0]:
                position, below = self._stacks[stack]
                element = self._elements[position] if stack else None
                if isinstance(element, OneToken) and (element.token == token) != element.negated:
                    tops.update(self._closure(self._pushed(position + 1, below)))
            if not tops:
                return reached
            begun = NOTHING
            if reached != DEAD:
                tops.update(self._states[reached][0])
                begun = self._states[reached][1]
            return self._state(tops, begun)

    # -- the rest runs with the lock held --

    def _pushed(self, position: int, below: int) -> int:
        """The stack with a position on it; none is put where an alternative ends."""
        if self._elements[position] == _END:
            return below
        key = (position, below)
        stack = self._stack_of.get(key)
        if stack is None:
            stack = self._stack_of[key] = len(self._stacks)
            self._stacks.append(key)
        return stack

    def _closure(self, stack: int) -> tuple[int, ...]:
        """The stacks that a stack becomes when references to rules are followed: empty, or on a terminal."""
        known = self._closed.get(stack)
        if known is not None:
            return known
        closed_stacks: set[int] = set()
        seen = {stack}
        todo = [stack]
        while todo:
            reached = todo.pop()
            position, below = self._stacks[reached]
            element = self._elements[position] if reached else None
            if not isinstance(element, int):
                closed_stacks.add(reached)
                continue
            rest = self._pushed(position + 1, below)
            for start in self._starts[element]:
                new = self._pushed(start, rest)
                if new not in seen:
                    seen.add(new)
                    todo.append(new)
            _checked_count(len(seen))
        closed = self._closed[stack] = tuple(closed_stacks)
        return closed

    def _state(self, stacks: Iterable[int], begun: PartialCodePoint) -> int:
        key = (tuple(sorted(stacks)), begun)
        state = self._state_of.get(key)
        if state is None:
            _checked_count(len(key[0]))
            state = len(self._states)
            if state >= MAX_STATES:
                raise TooManyStatesError(
                    f"grammar: this text needs more than {MAX_STATES} states of the grammar"
                )
            self._state_of[key] = state
            self._states.append(key)
            self._known.append(False)
            if state >= len(self.table):
                self.table = np.concatenate([self.table, np.full_like(self.table, UNKNOWN)])
        return state

    def _make_row(self, state: int) -> None:
        stacks, begun = self._states[state]
        row = np.full(256, DEAD, np.int32)
        terminals = [
            (stack, element)
            for stack in stacks
            if stack and isinstance(element := self._elements[self._stacks[stack][0]], Characters)
        ]
        groups: dict[tuple[tuple[int, ...], PartialCodePoint], list[int]] = {}
        for byte, surviving, after in self._successors(terminals, begun):
            groups.setdefault((surviving, after), []).append(byte)
        for (surviving, after), together in groups.items():
            row[together] = self._after(surviving, after)
        self.table[state] = row
        self._known[state] = True

    def _after(self, surviving: Sequence[int], begun: PartialCodePoint) -> int:
        if begun.missing:
            return self._state(surviving, begun)
        tops: set[int] = set()
        for stack in surviving:
            position, below = self._stacks[stack]
            tops.update(self._closure(self._pushed(position + 1, below)))
            _checked_count(len(tops))
        return self._state(tops, NOTHING)

    def _successors(
        self, terminals: list[tuple[int, Characters]], begun: PartialCodePoint
    ) -> Iterable[tuple[int, tuple[int, ...], PartialCodePoint]]:
        """Each byte that is possible: the stacks that survive it, and what has begun after it."""
        if begun == NOTHING:
            for byte in range(1, 128):
                surviving = tuple(stack for stack, characters in terminals if byte in characters)
                if surviving:
                    yield byte, surviving, NOTHING
            for byte in range(0xC0, 0x100):
                missing = 1 if byte < 0xE0 else 2 if byte < 0xF0 else 3
                after = PartialCodePoint(byte & (0x1F if missing == 1 else 0xF), missing)
                yield from self._partial(byte, terminals, after)
            return
        for byte in range(0x80, 0xC0):
            value = _ANY if begun.value == _ANY else begun.value << 6 | (byte & 63)
            if begun.missing > 1:
                yield from self._partial(byte, terminals, PartialCodePoint(value, begun.missing - 1))
                continue
            surviving = tuple(
                stack for stack, characters in terminals if value == _ANY or value in characters
            )
            if surviving:
                yield byte, surviving, NOTHING

    def _partial(
        self, byte: int, terminals: list[tuple[int, Characters]], after: PartialCodePoint
    ) -> Iterable[tuple[int, tuple[int, ...], PartialCodePoint]]:
        """A byte that leaves a code point unfinished: stacks survive where some completion is possible."""
        if after.value == _ANY:
            yield byte, tuple(stack for stack, _ in terminals), after
            return
        if after.missing == 1 and after.value < 2:
            return  # seven bits in two bytes: llama.cpp refuses this, and no other overlong form
        low = after.value << 6 * after.missing
        high = low | (1 << 6 * after.missing) - 1
        if low == 0:
            low = 1 << 11 if after.missing == 2 else 1 << 16
        overlaps = [
            (stack, characters.overlap(low, min(high, LAST_VALUE))) for stack, characters in terminals
        ]
        surviving = tuple(stack for stack, overlap in overlaps if overlap)
        if not surviving:
            return
        whole = after.value > 0 and all(overlap == 2 for _, overlap in overlaps if overlap)
        yield byte, surviving, PartialCodePoint(_ANY, after.missing) if whole else after


def _checked_count(n: int) -> None:
    if n > MAX_STACKS:
        raise UsageError(f"grammar: it is too ambiguous, with more than {MAX_STACKS} ways to go on")
