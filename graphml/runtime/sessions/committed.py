"""What a session holds, changed by commits: the ids, how many of them are evaluated, what follows the last.

An evaluation writes cells of the cache first; only when all of it is done are ids and cells committed, by one
store of one reference. Whatever ends it before, be it an error or Ctrl-C between any two byte codes, the next
use finds the latest commit and rolls the cache back to it. Three rules keep that true:

1. The cells before `n_evaluated` hold the ids before it, at every byte code.
2. What takes tokens away commits that first and changes the cache after it.
3. What adds tokens changes the cache first and commits after it, if nothing else was committed meanwhile.

Knows ids, sequences and numbers of tokens; nothing of programs, sampling or text.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from graphml.errors import ContextFullError, UsageError
from graphml.ir.op import Array
from graphml.runtime.sessions.pinned import Pinned
from graphml.sampling import NextLogits
from graphml.sampling.chain.next_logits import NOTHING_KNOWN

Captured: TypeAlias = dict[str, Array]


def check_room(n_ctx: int, n_held: int, count: int) -> None:
    """ContextFullError unless a session of `n_ctx` tokens that holds so many takes `count` more."""
    if n_held + count > n_ctx:
        raise ContextFullError(
            f"the session holds at most n_ctx = {n_ctx} tokens and has {n_held}; got {count} more: "
            "rewind it, generate with overflow='shift', or make one with a larger n_ctx (--ctx)"
        )


@dataclass(frozen=True, eq=False)
class Commit:
    """One state of a session. Evaluated are its first `n_evaluated` of `n_tokens` tokens.

    ids: those of its tokens, and perhaps some behind them that no commit has; later commits share the list.
    source: the ids that an encoder has read. next_logits: what is known of the logits after the last token.
    captured, history: of the latest evaluation, and of all of them where that was asked for.
    """

    ids: list[int] = field(default_factory=list)
    n_tokens: int = 0
    n_evaluated: int = 0
    source: tuple[int, ...] = ()
    next_logits: NextLogits = NOTHING_KNOWN
    captured: Captured = field(default_factory=dict)
    history: tuple[Captured, ...] = ()


@dataclass(frozen=True, eq=False)
class Evaluation:
    """An evaluation that has begun. before: the commit that it goes on from; ids: what it adds.

    waiting: int32 [n], all that its steps take: the tokens that were not evaluated yet, and `ids`.
    """

    before: Commit
    sequence: Pinned
    ids: Array
    waiting: Array

    @property
    def all_ids(self) -> Array:
        """int32, all that its sequence holds when it is done."""
        held = np.array(self.before.ids[: self.before.n_evaluated], np.int32)
        return np.concatenate([held, self.waiting])


class Committed:
    """The commits of one sequence, of which the latest counts."""

    def __init__(self, sequence: Pinned) -> None:
        self._cells: Pinned | None = sequence
        self.latest = Commit()
        if sequence.shares:
            sequence.room.tell(sequence.slot, _evaluated_ids(self))

    def take(self, commit: Commit) -> None:
        """Hold what the commit of another sequence says; this one's cells are a copy of that one's."""
        self.latest = replace(commit, ids=commit.ids[: commit.n_tokens])

    def __len__(self) -> int:
        return self.latest.n_tokens

    @property
    def ids(self) -> list[int]:
        """The ids of all tokens, as a copy."""
        latest = self.latest
        return latest.ids[: latest.n_tokens]

    def history(self) -> Sequence[int]:
        """The same without a copy: good until the next change."""
        ids = self.latest.ids
        return ids if len(ids) == self.latest.n_tokens else self.ids

    @property
    def closed(self) -> bool:
        """Whether the cells were given back."""
        return self._cells is None

    @property
    def _sequence(self) -> Pinned:
        if self._cells is None or self._cells.room.open_lock.closed:
            raise UsageError("the session, or its model, was closed")
        return self._cells

    def close(self) -> None:
        """Give the cells back; the ids stay known."""
        sequence, latest, self._cells = self._cells, self.latest, None
        if sequence is not None and sequence.shares:
            sequence.room.leave(sequence, latest.ids[: latest.n_evaluated])

    def hide(self, hidden: bool = True) -> None:
        """Its cells are of use to no other session: they may not be what the model computes of the ids."""
        if hidden and self._cells is not None:
            self._cells.room.hide(self._cells.slot)

    def __del__(self) -> None:
        self.close()  # what a session that was never closed held is of use to others

    def rolled_back(self) -> Pinned:
        """The sequence, whose cells are those of the latest commit."""
        sequence, latest = self._sequence, self.latest
        if sequence.shares:
            sequence.room.settle(sequence.slot)
        del latest.ids[latest.n_tokens :]
        if sequence.n_source != len(latest.source):
            self.latest = latest = replace(
                latest, source=(), n_tokens=0, n_evaluated=0, next_logits=NOTHING_KNOWN
            )
            sequence.n_source = 0
        if sequence.n_computed != latest.n_evaluated:
            sequence.rewind(min(sequence.n_computed, latest.n_evaluated))
            self.latest = replace(latest, n_evaluated=sequence.n_computed)
        return sequence

    def begin(self, n_ctx: int, ids: Array) -> Evaluation:
        """Begin to evaluate what waits and `ids`; ContextFullError where `n_ctx` tokens are too few."""
        sequence = self.rolled_back()
        if len(ids):
            check_room(n_ctx, len(self), len(ids))
        before = self.latest = replace(self.latest)  # so that an evaluation around this one cannot commit
        held = np.array(before.ids[before.n_evaluated :], np.int32)
        return Evaluation(before, sequence, ids, np.concatenate([held, ids]))

    def commit(
        self,
        done: Evaluation,
        next_logits: NextLogits,
        captured: Captured | None = None,
        keep_history: bool = False,
    ) -> None:
        """The evaluation is done: its ids and cells belong to the session now, and this follows them."""
        n_done = done.before.n_evaluated + len(done.waiting)
        self._check(done.before, done.sequence.n_computed == n_done)
        last_captured = done.before.captured if captured is None else captured
        history = (*done.before.history, last_captured) if keep_history else done.before.history
        ids = done.before.ids
        commit = Commit(ids, n_done, n_done, done.before.source, next_logits, last_captured, history)
        ids[done.before.n_tokens :] = done.ids.tolist()
        self.latest = commit

    def append(self, token: int) -> None:
        """Add a token that is not evaluated yet."""
        commit = replace(self.latest, n_tokens=self.latest.n_tokens + 1, next_logits=NOTHING_KNOWN)
        commit.ids[self.latest.n_tokens :] = [token]
        self.latest = commit

    def evaluated(self, before: Commit, next_logits: NextLogits | None = None) -> None:
        """All tokens of `before` are in their cells now; None: what follows them is told elsewhere."""
        self._check(before, self._sequence.n_computed >= before.n_tokens)
        known = next_logits or NOTHING_KNOWN
        self.latest = replace(before, n_evaluated=before.n_tokens, next_logits=known)

    def has_cells(self, n_tokens: int) -> bool:
        """Whether so many tokens are in cells, those of a step ahead or a draft included."""
        return self._sequence.n_computed >= n_tokens

    @property
    def n_waiting(self) -> int:
        """How many tokens are not evaluated."""
        return self.latest.n_tokens - self.latest.n_evaluated

    @property
    def n_cells(self) -> int:
        """How many tokens are in cells, while an evaluation runs, too."""
        return self._sequence.n_computed

    def rewind(self, n_tokens: int) -> None:
        """Forget all tokens but the first `n_tokens`."""
        n_evaluated = min(self.latest.n_evaluated, n_tokens)
        self.latest = replace(
            self.latest, n_tokens=n_tokens, n_evaluated=n_evaluated, next_logits=NOTHING_KNOWN
        )
        self.rolled_back()

    def shift(self, keep: int, drop: int) -> None:
        """Forget `drop` tokens from `keep` on; the later ones come `drop` positions earlier.

        Their cells are moved. Where that is interrupted, the tokens from `keep` on wait to be evaluated in
        their new places; so they do where a window has been written over.
        """
        sequence, before = self.rolled_back(), self.latest
        sequence.room.runner.prepare_moves(shifts=True)  # before anything has changed
        moves = sequence.holds_all
        later = max(0, before.n_evaluated - keep - drop) if moves else 0
        n_tokens = before.n_tokens - drop
        ids = before.ids[:keep] + before.ids[keep + drop : before.n_tokens]
        n_evaluated = min(keep, before.n_evaluated)
        self.latest = cut = replace(
            before, ids=ids, n_tokens=n_tokens, n_evaluated=n_evaluated, next_logits=NOTHING_KNOWN
        )
        if later:
            sequence.move_down(keep + drop, later, drop)
        sequence.rewind(n_evaluated + later)
        self._check(cut, not moves or sequence.n_computed == n_evaluated + later)
        self.latest = replace(cut, n_evaluated=sequence.n_computed)

    def last_waits(self) -> Pinned:
        """Have the last token evaluated once more: what followed it is gone."""
        n_evaluated = min(self.latest.n_evaluated, self.latest.n_tokens - 1)
        self.latest = replace(self.latest, n_evaluated=n_evaluated, next_logits=NOTHING_KNOWN)
        return self.rolled_back()

    def begin_source(self) -> tuple[Commit, Pinned]:
        """Forget all tokens and the source text, since an encoder reads another one."""
        self.latest = replace(self.latest, source=(), n_tokens=0, n_evaluated=0, next_logits=NOTHING_KNOWN)
        sequence = self.rolled_back()
        return self.latest, sequence

    def commit_source(self, before: Commit, ids: Array) -> None:
        """The encoder has read these ids since `before`."""
        self._check(before, self._sequence.n_source == len(ids))
        self.latest = replace(before, source=tuple(ids.tolist()))

    def hold(self, ids: list[int]) -> None:
        """Hold these ids, none of which are evaluated; what was captured stays."""
        self.latest = replace(
            self.latest, ids=ids, n_tokens=len(ids), n_evaluated=0, next_logits=NOTHING_KNOWN
        )

    def restore(
        self, ids: list[int], n_evaluated: int, source: tuple[int, ...], next_logits: NextLogits
    ) -> None:
        """Hold what another one held; the cells hold the first `n_evaluated` of the ids, and the source."""
        self.latest = Commit(list(ids), len(ids), n_evaluated, source, next_logits)

    def _check(self, before: Commit, complete: bool) -> None:
        """UsageError where something else was committed meanwhile: the cells are not this evaluation's."""
        if self.latest is not before or not complete:
            raise UsageError(
                "the session was used for something else while it evaluated (in a progress callback, a patch "
                "or another thread?); its tokens are those of that other use"
            )


def _evaluated_ids(held: Committed) -> Callable[[], list[int] | None]:
    """What reads the evaluated ids of a sequence from another thread; None where they change meanwhile."""
    known = weakref.ref(held)

    def read() -> list[int] | None:
        of = known()
        sequence = None if of is None else of._cells
        if of is None or sequence is None or not sequence.holds_all:
            return None
        latest = of.latest
        ids = latest.ids[: latest.n_evaluated]
        return ids if of.latest is latest else None  # a later commit may have others in the same list

    return read
