"""A GBNF grammar over the tokens of one vocabulary: masks by a walk of the vocabulary's trie.

Its states are those of a pushdown automaton over bytes, made when they are first reached. A state is a set of
stacks, as in llama.cpp, and what is known of a code point that has begun. Stacks share their tails and are
numbered, equal sets are one state, and the row of a state's 256 successors is made once: matching and masks
are table look-ups. Knows rules, bytes and the trie; nothing of a grammar's text or of who samples.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Final, NamedTuple

import numpy as np

from graphml.errors import UsageError
from graphml.sampling.structured.gbnf_rules import LAST_VALUE, Characters, OneToken, RuleReference, Rules
from graphml.sampling.structured.literal_texts import UNREADABLE
from graphml.sampling.structured.packed_masks import Bits, packed
from graphml.sampling.structured.token_bytes import Bools, Ints, TokenBytes

DEAD: Final = -1
UNKNOWN: Final = -2
MAX_STACKS: Final = 20_000
"""Stacks of one state; an ambiguous grammar has many, one that is made to hurt has more."""
MAX_STATES: Final = 30_000
"""States of one table, at 1 KiB each; whoever needs more begins a new table."""
_END: Final = -1
_WIDE: Final = 128, LAST_VALUE
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
            survivors: dict[int, list[int]] = {}
            for stack, characters in terminals:
                for byte in characters.ascii:
                    survivors.setdefault(byte, []).append(stack)
            yield from ((byte, tuple(stacks), NOTHING) for byte, stacks in survivors.items())
            terminals = [(stack, characters) for stack, characters in terminals if characters.overlap(*_WIDE)]
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


KEPT_MASKS: Final = 128
"""Masks that are kept per grammar: 128 x 19 kB at 151,936 tokens."""

MAX_FORCED: Final = 512


class StateTable:
    """States of a grammar and the masks that were made of them; replaced as a whole once it is full."""

    def __init__(self, rules: Rules, vocabulary: TokenBytes) -> None:
        self.states = GbnfStates(rules)
        self._vocabulary = vocabulary
        self._masks: OrderedDict[int, Bits] = OrderedDict()
        self._lock = Lock()

    def after(self, state: int, token: int) -> int:
        """The state after a token, DEAD where it is not possible."""
        piece = self._vocabulary.pieces[token]
        if not piece or 0 in piece:
            return DEAD
        reached = state
        for byte in piece:
            reached = int(self.states.row(reached)[byte])
            if reached == DEAD:
                break
        if self.states.token_elements(state) and self._vocabulary.whole[token]:
            return self.states.after_token(state, token, reached)
        return reached

    def bits(self, state: int) -> Bits:
        """The tokens that are possible in a state; kept for the next time."""
        with self._lock:
            kept = self._masks.get(state)
            if kept is not None:
                self._masks.move_to_end(state)
                return kept
        mask = packed(self._made_mask(state))
        mask.setflags(write=False)
        with self._lock:
            self._masks[state] = mask
            while len(self._masks) > KEPT_MASKS:
                self._masks.popitem(last=False)
        return mask

    def forced_bytes(self, state: int) -> bytes:
        """The bytes that every text has next from a state on, at most so many as are worth a step."""
        forced = bytearray()
        while len(forced) < MAX_FORCED and not self.states.may_end(state):
            if self.states.token_elements(state):
                break
            row = self.states.row(state)
            alive = np.flatnonzero(row != DEAD)
            if len(alive) != 1:
                break
            forced.append(int(alive[0]))
            state = int(row[alive[0]])
        return bytes(forced)

    def _made_mask(self, state: int) -> Bools:
        vocabulary, trie = self._vocabulary, self._vocabulary.trie
        alive = np.zeros(trie.n_nodes, bool)
        nodes, reached = np.zeros(1, np.int32), np.full(1, state, np.int32)
        while len(nodes):
            nodes, of = trie.children(nodes)
            came_from, letters = reached[of], trie.letters[nodes]
            reached = self.states.table[came_from, letters]
            unknown = reached == UNKNOWN
            if unknown.any():
                self.states.fill_rows(np.unique(came_from[unknown]).tolist())
                reached = self.states.table[came_from, letters]
            going = reached != DEAD
            nodes, reached = nodes[going], reached[going]
            alive[nodes] = True
        mask = np.zeros(vocabulary.n, bool)
        mask[trie.tokens] = alive[trie.node_of]
        ends = list(vocabulary.end_tokens)
        for element in self.states.token_elements(state):
            if element.negated:
                allowed = vocabulary.whole.copy()
                if element.token < len(allowed):
                    allowed[element.token] = False
                mask |= allowed
            elif element.token < len(mask):
                mask[element.token] |= vocabulary.whole[element.token]
        mask[ends] = self.states.may_end(state)
        return mask


class GbnfWalk:
    """A place in a grammar that is moved by bytes, as `ByteWalk` describes."""

    def __init__(self, table: StateTable, state: int) -> None:
        self._table, self._path = table, [state]

    def forced(self) -> bytes:
        """The only bytes by which the text can go on."""
        try:
            return self._table.forced_bytes(self._path[-1])
        except UsageError:  # a limit, which the text itself may never reach
            return b""

    def ways(self) -> tuple[Sequence[int], bool]:
        """The bytes that may come next, and whether the text may stop here."""
        states, state = self._table.states, self._path[-1]
        try:
            ways = np.flatnonzero(states.row(state) != DEAD).tolist()
        except UsageError:
            return UNREADABLE
        return ways, states.may_end(state) or bool(states.token_elements(state))

    def go(self, data: bytes) -> None:
        """Go on by bytes that are allowed."""
        for byte in data:
            self._path.append(int(self._table.states.row(self._path[-1])[byte]))

    def back(self, n: int) -> None:
        """Take back the last n bytes."""
        del self._path[len(self._path) - n :]


class GbnfGrammar:
    """A compiled GBNF grammar, as `Structure` describes."""

    def __init__(self, rules: Rules, vocabulary: TokenBytes) -> None:
        self._rules, self._vocabulary = rules, vocabulary
        self._lock = Lock()
        self.table = StateTable(rules, vocabulary)

    def begin(self) -> GbnfProgress:
        """The place before the first token."""
        return GbnfProgress(self)

    def renewed(self, full: StateTable) -> StateTable:
        """A table with room, instead of one that is full."""
        with self._lock:
            if self.table is full:
                self.table = StateTable(self._rules, self._vocabulary)
            return self.table


class GbnfProgress:
    """One text's place: the states after each of its tokens."""

    def __init__(self, grammar: GbnfGrammar) -> None:
        self._grammar = grammar
        self._table = grammar.table
        self._tokens: list[int] = []
        self._path = [self._table.states.start]

    def bits(self) -> Bits:
        """The tokens that may come next, end tokens included."""
        try:
            return self._table.bits(self._path[-1])
        except TooManyStatesError:
            self._begin_again()
            return self._table.bits(self._path[-1])

    def forced_bytes(self) -> bytes:
        """The only bytes by which the text can go on."""
        try:
            return self._table.forced_bytes(self._path[-1])
        except TooManyStatesError:
            return b""

    def walk(self, accepted: Sequence[int]) -> GbnfWalk:
        """The same place as one that is moved by bytes."""
        return GbnfWalk(self._table, self._path[-1])

    def allows(self, token: int) -> bool:
        """Whether this token may come next."""
        return self._after(token) != DEAD

    def may_end(self) -> bool:
        """Whether the text may end here."""
        return self._table.states.may_end(self._path[-1])

    def accept(self, token: int) -> None:
        """Go on by a token that is allowed."""
        self._path.append(self._after(token))
        self._tokens.append(token)

    def rewind(self, n: int) -> None:
        """Take back the last n tokens."""
        del self._path[-n:]
        del self._tokens[-n:]

    def copy(self) -> GbnfProgress:
        """The same place, to go on separately."""
        copied = GbnfProgress.__new__(GbnfProgress)
        copied._grammar, copied._table = self._grammar, self._table
        copied._tokens, copied._path = list(self._tokens), list(self._path)
        return copied

    def _after(self, token: int) -> int:
        try:
            return self._table.after(self._path[-1], token)
        except TooManyStatesError:
            self._begin_again()
            return self._table.after(self._path[-1], token)

    def _begin_again(self) -> None:
        """Match the text so far in a table with room; TooManyStatesError if the text alone fills it."""
        self._table = self._grammar.renewed(self._table)
        self._path = [self._table.states.start]
        for token in self._tokens:
            self._path.append(self._table.after(self._path[-1], token))
