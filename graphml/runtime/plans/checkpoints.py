"""Checkpoints of recurrent states: which copies an engine keeps, and where in a sequence they are made.

A recurrent state cannot be cut back, so blocks that hold the first ids of a prompt help only with a copy of
the states after exactly these ids. Few are kept, the least recently used goes first:

- at the last block boundary before the end of each prompt;
- at the end of blocks that one more prompt has found without a checkpoint there, or that a prompt which waits
  shares with one being computed: what two prompts share, a third will (Marconi, arXiv:2411.19379);
- one of each sequence that follows it, at most a block behind where it generates: preemption goes on from
  there, and so does the next turn of a conversation.

A checkpoint is found by its ids, which are compared one by one. Knows ids, positions and numbers of copies;
nothing of arrays. Pure, as the scheduler whose plans say what is restored and kept.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np

from graphml.ir.op import Array
from graphml.runtime.blocks.block_content import Prefix
from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.plans.prompt_scores import n_findable

STATES = "states"
"""The kind of a checkpoint, in a store."""


@dataclass(eq=False)
class Checkpoint:
    """The states after `n` ids, in copy number `at`. ids: int32 as bytes. extra: as of their request.

    follows: it is the one that follows its sequence, and nobody else has used it.
    """

    at: int
    n: int
    ids: bytes
    extra: bytes
    follows: bool


@dataclass(eq=False)
class _Marks:
    """Of one sequence. stops: where its chunks end for a checkpoint. latest: where the latest one is.

    follows: the checkpoint that follows it. planned: the one that the step under way makes.
    """

    stops: set[int] = field(default_factory=set)
    latest: int = 0
    follows: Checkpoint | None = None
    planned: Checkpoint | None = None


class Checkpoints:
    """`count` copies of states. with_cells: a checkpoint counts only where blocks hold its ids, too.

    apart: ids of a long prompt between two places of the checkpoint that follows it.
    """

    def __init__(self, count: int, block_size: int, with_cells: bool = True, apart: int = 256) -> None:
        self.count, self._size, self._with_cells, self._apart = count, block_size, with_cells, apart
        self._free = list(range(count))[::-1]
        self._kept: OrderedDict[Checkpoint, None] = OrderedDict()  # least recently used first
        self._marks: dict[Sequence, _Marks] = {}  # of those that run
        self.evicted: list[Checkpoint] | None = None
        """Where a list: those that gave way to others, whose copies hold their states until the next step."""

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, sequence: Sequence, pool: BlockPool) -> Checkpoint | None:
        """The longest checkpoint of those of the sequence's ids that it may find."""
        ids = np.array(sequence.ids[: n_findable(sequence)], np.int32)
        return self.longest(ids, sequence.request.extra, sequence.prefix, pool)

    def longest(self, ids: Array, extra: bytes, prefix: Prefix, pool: BlockPool) -> Checkpoint | None:
        """The longest checkpoint of some ids, int32 [n], that a sequence could begin behind.

        prefix: what their blocks follow.
        """
        candidates = self._after(ids, extra)
        if candidates and self._with_cells:
            n_held = len(pool.match(ids, prefix)[0]) * self._size
            candidates = [checkpoint for checkpoint in candidates if checkpoint.n <= n_held]
        return max(candidates, key=lambda checkpoint: checkpoint.n, default=None)

    def adopt(self, sequence: Sequence, pool: BlockPool) -> Checkpoint | None:
        """A sequence begins to run, with the blocks of its longest checkpoint; None: from its first id."""
        ids = np.array(sequence.ids[: n_findable(sequence)], np.int32)
        n_shared = len(pool.match(ids, sequence.prefix)[0]) * self._size
        checkpoint = self.find(sequence, pool)
        n = 0 if checkpoint is None else checkpoint.n
        sequence.adopt_prefix(pool, n)
        sequence.n_computed = n
        if checkpoint is not None:
            checkpoint.follows = False
            self._kept.move_to_end(checkpoint)
        ends = {n_shared, (sequence.request.n_prompt - 1) // self._size * self._size}
        self._marks[sequence] = _Marks({end for end in ends if end > n}, n)
        return checkpoint

    def kept(self) -> list[Checkpoint]:
        """All that can be found, least recently used first."""
        return list(self._kept)

    def ends(self, sequence: Sequence) -> set[int]:
        """How many of a sequence's ids each of its checkpoints is after."""
        return {
            checkpoint.n
            for checkpoint in self._after(np.array(sequence.ids, np.int32), sequence.request.extra)
        }

    def _after(self, ids: Array, extra: bytes) -> list[Checkpoint]:
        """Those after the first of some ids."""
        held = ids.tobytes()
        return [
            checkpoint
            for checkpoint in self._kept
            if checkpoint.extra == extra and held.startswith(checkpoint.ids)
        ]

    def has(self, ids: Array, extra: bytes) -> bool:
        """Whether there is one after exactly these ids, int32 [n]."""
        return any(checkpoint.n == len(ids) for checkpoint in self._after(ids, extra))

    def forget(self, ids: Array, extra: bytes) -> int:
        """Give up the checkpoints of some ids, int32 [n]; how many ids the longest was after."""
        checkpoints = self._after(ids, extra)
        for checkpoint in checkpoints:
            self._drop(checkpoint)
        return max((checkpoint.n for checkpoint in checkpoints), default=0)

    def lose_all(self) -> None:
        """What the copies held is gone."""
        for checkpoint in list(self._kept):
            self._drop(checkpoint)
        if self.evicted is not None:
            self.evicted.clear()

    def reserve(self) -> int | None:
        """The number of a copy for states that come from elsewhere: `put` or `put_back` follows."""
        if not self._free and self._kept:
            self._give_up_oldest()
        return self._free.pop() if self._free else None

    def put(self, at: int, ids: Array, extra: bytes) -> None:
        """The copy `at` holds the states after these ids, int32 [n]."""
        self._kept[Checkpoint(at, len(ids), np.asarray(ids, np.int32).tobytes(), extra, False)] = None

    def put_back(self, at: int) -> None:
        """The copy `at` holds nothing."""
        self._free.append(at)

    def want(self, sequence: Sequence, end: int) -> None:
        """Another sequence waits for what this one has computed up to `end`."""
        if end > sequence.n_computed:
            self._marks[sequence].stops.add(end)

    def cut(self, sequence: Sequence, count: int) -> int:
        """How many of its next `count` ids a step computes, so that it ends where a checkpoint is wanted."""
        start, marks = sequence.n_computed, self._marks[sequence]
        end = start + count
        stop = min((stop for stop in marks.stops if start < stop <= end), default=0)
        if not stop and end < len(sequence.ids):
            stop = end // self._size * self._size
            if stop <= start or stop < marks.latest + self._apart:
                stop = 0
        return stop - start if stop else count

    def plan(self, sequence: Sequence, end: int) -> int | None:
        """The copy that is made after the sequence's rows up to `end`, or None; `made` tells that it was."""
        marks = self._marks[sequence]
        stops = end in marks.stops
        if end % self._size or not (stops or self._is_due(sequence, end)):
            return None
        ids, extra = np.array(sequence.ids[:end], np.int32).tobytes(), sequence.request.extra
        same = next(
            (checkpoint for checkpoint in self._kept if checkpoint.ids == ids and checkpoint.extra == extra),
            None,
        )
        if same is not None:
            self._kept.move_to_end(same)
            same.follows = same.follows and not stops
            marks.latest = end
            return None
        if not stops and marks.follows is not None and marks.follows.follows:
            self._drop(marks.follows)
        at = self.reserve()
        if at is None:
            return None
        marks.planned = Checkpoint(at, end, ids, extra, not stops)
        return marks.planned.at

    def room(self, sequence: Sequence) -> int:
        """Ids behind its next one that a step may try, so that one ends where a checkpoint may be wanted."""
        behind = sequence.n_computed + 1
        return max(0, (behind // self._size + 1) * self._size - behind - 1)

    def _is_due(self, sequence: Sequence, end: int) -> bool:
        """Whether the checkpoint that follows a sequence moves to `end`."""
        return end >= self._marks[sequence].latest + (self._apart if end < len(sequence.ids) else self._size)

    def made(self, sequence: Sequence) -> None:
        """The step was run: the planned checkpoint, if there is one, can be found."""
        marks = self._marks[sequence]
        planned, marks.planned = marks.planned, None
        if planned is not None:
            marks.latest = planned.n
            marks.follows = planned if planned.follows else marks.follows
            self._kept[planned] = None

    def stopped(self, sequence: Sequence) -> None:
        """The sequence no longer runs; what it has planned and not made is free again."""
        marks = self._marks.pop(sequence, None)
        if marks is not None and marks.planned is not None:
            self._free.append(marks.planned.at)

    def _give_up_oldest(self) -> None:
        oldest = next(iter(self._kept))
        if self.evicted is not None:
            self.evicted.append(oldest)
        self._drop(oldest)

    def _drop(self, checkpoint: Checkpoint) -> None:
        if checkpoint in self._kept:
            del self._kept[checkpoint]
            self._free.append(checkpoint.at)
