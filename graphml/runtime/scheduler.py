"""The scheduler: waiting and running sequences -> the next step's plan.

There are no phases: a sequence holds ids and has computed some of them, and each step lets it catch up by as
much as the step's rows allow. That is prefill in chunks, decoding and resumption after preemption alike
(vLLM's scheduler, `vllm/v1/core/sched/scheduler.py`). Blocks are reserved before anything changes.

Who is served first is `FairOrder`'s matter. Whose blocks are taken when there are none left does not depend
on what was served: the newest of the lowest priority, so that the oldest of the highest always proceeds.

Pure: knows sequences, blocks and counts; no model, no clock, no thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from graphml.errors import UsageError
from graphml.runtime.block_pool import BlockPool
from graphml.runtime.checkpoints import Checkpoints
from graphml.runtime.draft_rows import with_drafts
from graphml.runtime.fair_order import FairOrder
from graphml.runtime.following_plan import following_plan
from graphml.runtime.guidance import newest_idle, waits_for_other
from graphml.runtime.moved_blocks import shift
from graphml.runtime.prompt_scores import MOST_ROWS, is_scored, n_scored
from graphml.runtime.sequence import Sequence, Status
from graphml.runtime.siblings import computes_for, is_awaited, sibling_of, take_over
from graphml.runtime.source_blocks import SourceBlocks
from graphml.runtime.step_plan import Move, Rows, StepPlan
from graphml.runtime.text_blocks import check_text, obstacle_of, take_blocks

WATERMARK = 0.01
"""Share of the pool that stays free when a sequence is admitted, so that it does not soon preempt others."""


class Scheduler:
    """Sequences of at most `n_ctx` tokens, at most `max_sequences` at a time, in the blocks of a pool.

    prompt_cap: most ids of one prompt in a step while another sequence runs. recurrent: sequences have states
    besides cells, which every id changes. checkpoints: of a recurrent model whose prefixes are found; without
    them its `pool` must not keep any.
    """

    def __init__(
        self,
        pool: BlockPool,
        max_sequences: int,
        n_ctx: int,
        prompt_cap: int = 512,
        *,
        recurrent: bool = False,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        if n_ctx > pool.n_blocks * pool.block_size:
            raise UsageError(
                f"scheduler: wanted room for a sequence of {n_ctx} tokens; the pool holds "
                f"{pool.n_blocks * pool.block_size}"
            )
        self.pool, self.n_ctx, self.prompt_cap, self._recurrent = pool, n_ctx, prompt_cap, recurrent
        self.held_back: Callable[[Sequence], bool] = lambda sequence: False
        """Whether a waiting sequence does not run yet, though there is room."""
        self.checkpoints = checkpoints
        pool.keeps_begun &= not recurrent and checkpoints is None
        self.sources = SourceBlocks(pool.n_blocks, pool.block_size, pool.keeps)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        most = min([max_sequences, *(window.n_sequences for window in pool.windows)])
        self._slots = list(range(most))[::-1]
        self._order = FairOrder()
        self._scored_left = MOST_ROWS

    def __bool__(self) -> bool:
        return bool(self.waiting or self.running)

    def check(self, sequence: Sequence) -> None:
        """UsageError for a prompt that no step could compute and continue, or a text that none could pool."""
        if sequence.request.pooling:
            check_text(sequence, self.pool)
        elif not 0 < len(sequence.ids) < self.n_ctx:
            raise UsageError(
                f"prompt: wanted 1 to {self.n_ctx - 1} ids, which leave room for one more in the context of "
                f"{self.n_ctx}; got {len(sequence.ids)}"
            )

    def add(self, sequence: Sequence) -> None:
        """A sequence waits from now on; errors as of `check`."""
        self.check(sequence)
        self._order.came(sequence.request.key)
        self.waiting.append(sequence)
        for one in self.running:
            self._want(one, sequence)

    def schedule(self, budget: int) -> StepPlan | None:
        """The next step of at most `budget` rows; None where nothing waits or runs.

        Each running sequence that is one id behind gets its row, whatever the budget; prompts share the rest.
        """
        rows, preempted = list[Rows](), list[Sequence]()
        self._scored_left = MOST_ROWS
        chosen: set[Sequence] = set()
        alone = len(self.running) + len(self.waiting) == 1
        budget -= sum(one.n_behind <= 1 for one in self.running)
        for sequence in self._order.sort(self.running):
            if sequence.status is not Status.RUNNING:
                continue  # preempted by one before it
            decodes = sequence.n_behind <= 1
            count = self._chunk(sequence, budget, alone)
            if not count:
                continue
            moves: tuple[Move, ...] | None = ()
            if len(sequence.ids) >= self.n_ctx:
                moves = self._shift(sequence, preempted, chosen)
            if moves is None or not self._reserve(sequence, count, preempted, chosen):
                break
            rows.append(self._rows(sequence, count, moves=moves))
            chosen.add(sequence)
            budget -= 0 if decodes else count
        sources, texts = list[Sequence](), list[Sequence]()
        admitted = [] if preempted else list(self._admitted(budget, alone, sources, texts))
        rows += admitted
        if not rows and not preempted and not texts and (idle := newest_idle(self.running, self.waiting)):
            self._preempt(idle, preempted)
        for one in rows:
            self._order.serve(one.sequence.request, one.count)
        rows = with_drafts(rows, self.pool, self.n_ctx, as_proposed=not admitted)
        made = StepPlan(tuple(rows), tuple(preempted), tuple(sources), tuple(texts))
        return made if rows or preempted or texts else None

    def follow(self, plan: StepPlan) -> StepPlan | None:
        """The step after a plan that was not computed yet, if each of its sequences goes on by one id.

        None where other sequences have a part in it: one that could be admitted, or must be preempted; and
        where one is sure to end.
        """
        if self.waiting and self._slots:
            return None
        return following_plan(plan, self.running, self.pool, self.n_ctx, self._order)

    def computed(self, plan: StepPlan) -> None:
        """The step was run: its rows are computed, for sequences that still run; drafts: see `draft_rows`."""
        self.sources.read(plan.sources)
        for rows in plan.rows:
            if rows.sequence.status is Status.RUNNING and rows.sequence.n_computed == rows.start:
                rows.sequence.advance(rows.count - rows.n_drafted, self.pool)
                if self.checkpoints is not None:
                    self.checkpoints.made(rows.sequence)

    def remove(self, sequence: Sequence) -> None:
        """A sequence has ended, or nobody wants it any more; a second call does nothing."""
        if sequence.status is Status.FINISHED:
            return
        if sequence.status is Status.RUNNING:
            self._stop(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.status = Status.FINISHED
        self._order.left(sequence.request.key, (*self.waiting, *self.running))

    def expired(self, now: float) -> list[Sequence]:
        """Sequences whose deadline has passed."""
        everybody = (*self.running, *self.waiting)
        return [one for one in everybody if (one.request.deadline or math.inf) <= now]

    @property
    def has_slot(self) -> bool:
        """Whether one more sequence may run."""
        return bool(self._slots)

    def waiting_in_order(self) -> list[Sequence]:
        """Those that wait, in the order in which they are admitted."""
        return self._order.sort(self.waiting)

    def _chunk(self, sequence: Sequence, budget: int, alone: bool) -> int:
        """How many ids it computes in a step with room for so many."""
        if sequence.n_behind <= 1:
            return sequence.n_behind
        cap = budget if alone else min(budget, self.prompt_cap)
        count = max(0, min(sequence.n_behind, cap))
        if is_scored(sequence):
            count = min(count, self._scored_left)
            self._scored_left -= count
        if self.checkpoints is not None:
            count = self.checkpoints.cut(sequence, count)
        # Its siblings fork from it before the prompt's last id, which each of them computes for itself.
        return count - (count == sequence.n_behind and is_awaited(sequence, self.waiting, self.pool))

    def _reserve(
        self, sequence: Sequence, count: int, preempted: list[Sequence], chosen: set[Sequence]
    ) -> bool:
        """Give it blocks for `count` more ids, of others if need be; False where it was preempted itself."""
        needed = sequence.blocks_needed(count, self.pool.block_size)
        while self.pool.n_free < needed:
            if not self._free_some(sequence, preempted, chosen):
                return False
        blocks = self.pool.allocate(needed)
        assert blocks is not None
        sequence.blocks += blocks
        return True

    def _shift(
        self, sequence: Sequence, preempted: list[Sequence], chosen: set[Sequence]
    ) -> tuple[Move, ...] | None:
        """Have a sequence forget what its full context has no room for; None where it was preempted."""
        keep, drop = sequence.to_forget(self.n_ctx)
        while (moves := shift(sequence, keep, drop, self.pool)) is None:
            if not self._free_some(sequence, preempted, chosen):
                return None
        return moves

    def _free_some(self, sequence: Sequence, preempted: list[Sequence], chosen: set[Sequence]) -> bool:
        """Preempt the newest of the lowest priority for a sequence; False where that is itself."""
        candidates = [one for one in self.running if one not in chosen]
        victim = max(candidates, key=lambda one: (-one.request.priority, one.order))
        self._preempt(victim, preempted)
        return victim is not sequence

    def _preempt(self, sequence: Sequence, preempted: list[Sequence]) -> None:
        preempted.append(sequence)
        self._stop(sequence)
        if len(sequence.ids) >= self.n_ctx:
            sequence.forget(*sequence.to_forget(self.n_ctx))
        sequence.status = Status.PREEMPTED
        sequence.n_preempted += 1
        self.waiting.append(sequence)

    def _stop(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        sequence.give_back(self.pool)
        self.sources.give_back(sequence)
        if self.checkpoints is not None:
            self.checkpoints.stopped(sequence)
        self._slots.append(sequence.slot)
        sequence.slot = -1

    def _admitted(
        self, budget: int, alone: bool, sources: list[Sequence], texts: list[Sequence]
    ) -> Iterator[Rows]:
        """Start waiting sequences while there are rows, slots and blocks; nobody overtakes for want of those.

        One whose prompt another is just computing, half of it at least, waits to find it. sources: gets those
        whose source text is to be read, which takes rows, too; the first has as many as it needs. texts: gets
        those of which rows are wanted.
        """
        for sequence in self._order.sort(self.waiting):
            sequence.waits_for = self._obstacle(sequence, budget, texts)
            if sequence.waits_for in ("store", "prefix", "guidance"):
                continue
            if sequence.waits_for:
                return
            if sequence.request.pooling:
                self._begin(sequence)
                take_blocks(sequence, self.pool)
                self._order.serve(sequence.request, len(sequence.ids))
                texts.append(sequence)
                budget -= len(sequence.ids)
                continue
            n_source = self.sources.take(sequence, self.running, budget if sources else None)
            if n_source is None:
                sequence.waits_for = "source"
                return
            if n_source:
                sources.append(sequence)
            sibling = sibling_of(sequence, self.running, self.pool)
            self._begin(sequence)
            restore = self._adopt(sequence)
            moves, states_of = take_over(sequence, sibling, self.pool, self._recurrent)
            if states_of is not None:
                restore = None
            if sequence.n_cached < 0:
                sequence.n_cached = sequence.n_computed
            count = self._chunk(sequence, budget, alone)
            blocks = self.pool.allocate(sequence.blocks_needed(count, self.pool.block_size))
            assert blocks is not None
            sequence.blocks += blocks
            budget -= count + n_source
            yield self._rows(sequence, count, restore, moves, states_of)

    def _begin(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        self.running.append(sequence)
        sequence.slot, sequence.status = self._slots.pop(), Status.RUNNING

    def _adopt(self, sequence: Sequence) -> int | None:
        """What was computed of its ids is its own; the copy that its states are restored from, if any."""
        if self.checkpoints is None:
            sequence.adopt_prefix(self.pool, 0 if is_scored(sequence) else None)
            return None
        found = self.checkpoints.adopt(sequence, self.pool)
        for one in self.waiting:
            self._want(sequence, one)
        return None if found is None else found.at

    def _want(self, running: Sequence, sequence: Sequence) -> None:
        """A checkpoint where a waiting sequence will find what a running one computes for it."""
        size = self.pool.block_size
        if self.checkpoints is not None and (end := computes_for(running, sequence, size)):
            self.checkpoints.want(running, end)

    def _rows(
        self,
        sequence: Sequence,
        count: int,
        restore: int | None = None,
        moves: tuple[Move, ...] = (),
        states_of: int | None = None,
    ) -> Rows:
        start, scored = sequence.n_computed, n_scored(sequence, sequence.n_computed, count)
        n_outputs = scored + (count == sequence.n_behind)
        keep = None if self.checkpoints is None else self.checkpoints.plan(sequence, start + count)
        return Rows(sequence, start, count, n_outputs, scored, restore, keep, moves, states_of)

    def _obstacle(self, sequence: Sequence, budget: int, texts: list[Sequence]) -> str:
        """What it waits for: rows, a slot, the store, a prefix, guidance or blocks; "": it can start."""
        if waits_for_other(sequence):
            return "guidance"
        if budget <= 0 or not self._slots or (is_scored(sequence) and self._scored_left <= 0):
            return "rows" if self._slots else "slot"
        if sequence.request.pooling:
            return obstacle_of(sequence, texts, budget, self.pool, self._promised())
        if self.held_back(sequence):
            return "store"
        sibling = sibling_of(sequence, self.running, self.pool)
        if sibling is not None and sibling.n_computed < sequence.request.n_prompt - 1:
            return "prefix"
        shares, size = sibling is None and self.pool.keeps, self.pool.block_size
        if shares and any(computes_for(one, sequence, size) for one in self.running):
            return "prefix"
        return "" if self._fits(sequence) else "blocks"

    def _fits(self, sequence: Sequence) -> bool:
        """Whether all its ids fit beside what the running ones still need, and some blocks stay free."""
        most = 0 if is_scored(sequence) else None
        if self.checkpoints is not None:
            found = self.checkpoints.find(sequence, self.pool)
            most = 0 if found is None else found.n
        needed = sequence.blocks_to_start(self.pool, most)
        return needed + self._promised() <= self.pool.n_free

    def _promised(self) -> int:
        """Free blocks that running sequences still need, and some that stay free beside them."""
        needed = sum(one.blocks_needed(one.n_behind, self.pool.block_size) for one in self.running)
        return needed + (math.ceil(WATERMARK * self.pool.n_blocks) if self.running else 0)
