"""A GBNF grammar over the tokens of one vocabulary: masks by a walk of the vocabulary's trie.

Knows the states of a grammar and the trie; nothing of a grammar's text or of who samples.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Final

import numpy as np

from graphml.errors import UsageError
from graphml.sampling.structured.gbnf_rules import Rules
from graphml.sampling.structured.gbnf_states import DEAD, UNKNOWN, GbnfStates, TooManyStatesError
from graphml.sampling.structured.literal_texts import UNREADABLE
from graphml.sampling.structured.packed_masks import Bits, packed
from graphml.sampling.structured.token_bytes import Bools, TokenBytes

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
