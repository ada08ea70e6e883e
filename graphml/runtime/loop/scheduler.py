"""The scheduler: waiting and running sequences -> the next step's plan.

There are no phases: a sequence holds ids and has computed some of them, and each step lets it catch up by as
much as the step's rows allow. That is prefill in chunks, decoding and resumption after preemption alike
(vLLM's scheduler, `vllm/v1/core/sched/scheduler.py`). Blocks are reserved before anything changes.

Who is served first is `FairOrder`'s matter; which of those that wait start is `Admission`'s. Whose blocks are
taken when there are none left does not depend on what was served: the newest of the lowest priority, so that
the oldest of the highest always proceeds.

Pure: knows sequences, blocks and counts; no model, no clock, no thread.
"""

from __future__ import annotations

from collections.abc import Sequence as Values
from itertools import chain, islice

from graphml.errors import UsageError
from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.blocks.sequence import Company, Sequence, Status
from graphml.runtime.loop.admission import Admission, check_text
from graphml.runtime.loop.sequence_queues import SequenceQueues
from graphml.runtime.loop.speculation import computed, with_drafts, with_states_again
from graphml.runtime.loop.step_budget import PromptChunks
from graphml.runtime.loop.turns import Turns
from graphml.runtime.plans.checkpoints import Checkpoints
from graphml.runtime.plans.moved_blocks import shift
from graphml.runtime.plans.step_plan import Move, Rows, StepPlan
from graphml.runtime.steps.guidance import newest_idle
from graphml.runtime.steps.run_ahead import following


class Scheduler:
    """Sequences of at most `n_ctx` tokens, at most `max_sequences` at a time, in the blocks of a pool.

    prompt_cap: most ids of one prompt in a step while another sequence runs; max_chunk: in any. recurrent:
    sequences have states besides cells, which every id changes. checkpoints: of a recurrent model whose
    prefixes are found; without them its `pool` must not keep any. waiting, running: see `SequenceQueues`.
    admission: what starts.
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
        max_chunk: int | None = None,
    ) -> None:
        if n_ctx > pool.n_blocks * pool.block_size:
            raise UsageError(
                f"scheduler: wanted room for a sequence of {n_ctx} tokens; the pool holds "
                f"{pool.n_blocks * pool.block_size}"
            )
        self.pool, self.n_ctx, self.checkpoints = pool, n_ctx, checkpoints
        pool.keeps_begun &= not recurrent and checkpoints is None
        self._queues = SequenceQueues(pool, max_sequences, checkpoints, recurrent)
        self.waiting, self.running = self._queues.waiting, self._queues.running
        self.sources = self._queues.sources
        self._chunks = PromptChunks(self._queues, prompt_cap, max_chunk)
        self.admission = Admission(self._queues, self._chunks)
        self._recurrent, self._turns = recurrent, Turns()

    def __bool__(self) -> bool:
        return bool(self.waiting or self.running)

    def check(self, sequence: Sequence) -> None:
        """UsageError for a prompt that no step could compute and continue, or a text that none could pool."""
        if sequence.request.pooling:
            check_text(sequence, self.pool)
        elif not 0 < len(sequence.ids) < self.n_ctx:
            remedy = ": shorten it, or choose a larger n_ctx (--ctx)" if sequence.ids else ""
            raise UsageError(
                f"prompt: wanted 1 to {self.n_ctx - 1} ids, which leave room for one more in the context of "
                f"{self.n_ctx}; got {len(sequence.ids)}{remedy}"
            )

    def add(self, sequence: Sequence) -> None:
        """A sequence waits from now on; errors as of `check`."""
        self.check(sequence)
        self._queues.add(sequence)

    def schedule(self, budget: int, under_way: Values[StepPlan] = (), n_plans: int = 1) -> StepPlan | None:
        """The next step of at most `budget` rows; None where nothing waits or runs.

        Each running sequence that is one id behind gets its row, whatever the budget; prompts share the rest.
        Sequences with different compile options take turns: see `Turns`.

        under_way: plans that were `submitted`, at most n_plans - 1: sequences whose next ids these decide
        have no part in the step, and nobody's blocks are taken. So many plans share all sequences.
        """
        self.admission.under_way = {
            rows.sequence for plan in under_way for rows in plan.rows if not rows.is_known
        }
        probed = [waiting for waiting in self.waiting if waiting.request.options is not None]
        plain = (waiting for waiting in self.waiting if waiting.request.options is None)
        next_probed = self._queues.order.sort(probed)[:1]  # nobody overtakes it
        for kind in self._turns.order(chain(self.running, next_probed, plain)):
            plan = self._scheduled(budget, kind, n_plans, may_take=not under_way)
            if plan is not None:
                self._turns.had(kind)
                return plan
        if under_way:
            return None
        idle, preempted = newest_idle(self.running, self.waiting), list[Sequence]()
        if idle is None:
            return None
        self._preempt(idle, preempted)
        return StepPlan((), tuple(preempted))

    def states_lost(self) -> None:
        """Running sequences wait again, to be computed from their first id; no prefix is found any more."""
        for sequence in list(self.running):
            self._preempt(sequence, [])
        self.pool.lose_all()
        if self._queues.checkpoints is not None:
            self._queues.checkpoints.lose_all()

    def _scheduled(self, budget: int, kind: Company, n_plans: int, may_take: bool) -> StepPlan | None:
        """A step of one kind; may_take: whether others are preempted for it, and full contexts shifted."""
        rows, preempted = list[Rows](), list[Sequence]()
        self._chunks.begin_step()
        chosen: set[Sequence] = set()
        alone = len(self.running) + len(self.waiting) == 1
        together, n_to_admit = self._shares(kind, n_plans)
        budget -= sum((running.n_behind <= 1) + running.n_again for running in together)
        for sequence in together:
            if sequence.status is not Status.RUNNING:
                continue  # preempted by one before it
            decodes = sequence.n_behind <= 1
            count = self._chunks.count(sequence, budget, alone)
            if not count:
                continue
            moves: tuple[Move, ...] | None = ()
            is_full = len(sequence.ids) >= self.n_ctx
            if not may_take and (is_full or not self._has_room(sequence, count)):
                break  # until those plans are computed
            if is_full:
                moves = self._shift(sequence, preempted, chosen)
            if moves is None or not self._reserve(sequence, count, preempted, chosen):
                break
            rows.append(self._chunks.rows(sequence, count, moves=moves))
            chosen.add(sequence)
            budget -= 0 if decodes else count
        sources, texts = list[Sequence](), list[Sequence]()
        to_admit = self.admission.admitted(budget, alone, kind, sources, texts)
        admitted = [] if preempted else list(islice(to_admit, n_to_admit))
        rows += admitted
        for span in rows:
            self._queues.order.serve(span.sequence.request, span.count)
        rows = with_drafts(rows, self.pool, self.n_ctx, not admitted, self.checkpoints)
        rows = with_states_again(rows)
        options = None if kind is None else kind[0]
        plan = StepPlan(tuple(rows), tuple(preempted), tuple(sources), tuple(texts), options)
        return plan if rows or preempted or texts else None

    def _shares(self, kind: Company, n_plans: int) -> tuple[list[Sequence], int | None]:
        """Running sequences of a kind that the step may have, in order, and how many may start besides.

        Of several plans each has its share of those that wait for a token, and of those at their prompts.
        """
        together = self._queues.order.sort(
            running
            for running in self.running
            if running.company == kind and running not in self.admission.under_way
        )
        if n_plans == 1:
            return together, None
        n_decoding = sum(running.n_behind == 1 for running in self.running)
        decoding = [running for running in together if running.n_behind == 1]
        reading = [running for running in together if running.n_behind > 1]
        share = -(-self.n_prompts // n_plans)
        chosen = reading[:share]
        n_to_admit = share - len(chosen) if self.has_slot else None  # texts need none
        return [*decoding[: -(-n_decoding // n_plans)], *chosen], n_to_admit

    def follow(self, plan: StepPlan) -> StepPlan | None:
        """The step after a plan that was not computed yet, if each of its sequences goes on by one id.

        None where other sequences have a part in it: one that could be admitted, or must be preempted; and
        where one is sure to end.
        """
        after = following(plan, self.n_ctx)
        if after is None or len(plan.rows) != len(self.running):
            return None
        takes_slot, slots = self._queues.takes_slot, self._queues.slots
        if any(slots or not takes_slot(waiting) for waiting in self.waiting):
            return None
        size = self.pool.block_size
        needed = [
            rows.sequence.blocks_needed(rows.start + 1 - rows.sequence.n_computed, size)
            for rows in after.rows
        ]
        blocks = self.pool.allocate(sum(needed))
        if blocks is None:
            return None
        for rows, count in zip(after.rows, needed, strict=True):
            rows.sequence.blocks += blocks[:count]
            del blocks[:count]
            self._queues.order.serve(rows.sequence.request, 1)
        return after

    def submitted(self, plan: StepPlan) -> None:
        """The step will be run before all that are planned from now on.

        Its rows are computed for those, if what follows them is known.
        """
        self.computed(StepPlan(tuple([rows for rows in plan.rows if rows.is_known])))

    def computed(self, plan: StepPlan) -> None:
        """The step was run: its rows are computed, for sequences that still run; see `speculation`."""
        self.sources.read(plan.sources)
        for rows in plan.rows:
            if rows.sequence.status is Status.RUNNING and rows.sequence.n_computed == rows.first_new:
                computed(rows, self.pool, self._recurrent)
                if self.checkpoints is not None:
                    self.checkpoints.made(rows.sequence)

    def remove(self, sequence: Sequence) -> None:
        """A sequence has ended, or nobody wants it any more; a second call does nothing."""
        self._queues.remove(sequence)

    def wait_again(self, sequence: Sequence) -> None:
        """See `SequenceQueues.wait_again`."""
        self._queues.wait_again(sequence)

    def expired(self, now: float) -> list[Sequence]:
        """Sequences whose deadline has passed."""
        return self._queues.expired(now)

    @property
    def n_prompts(self) -> int:
        """Sequences that are at their prompts, and those that wait and might run."""
        reading = sum(sequence.n_behind > 1 for sequence in self.running)
        return reading + min(len(self.waiting), len(self._queues.slots))

    @property
    def has_slot(self) -> bool:
        """Whether one more sequence may run."""
        return bool(self._queues.slots)

    @property
    def max_texts(self) -> int:
        """Texts of a step at most."""
        return self._queues.max_texts

    def waiting_in_order(self) -> list[Sequence]:
        """Those that wait, in the order in which they are admitted."""
        return self._queues.order.sort(self.waiting)

    def _has_room(self, sequence: Sequence, count: int) -> bool:
        return sequence.blocks_needed(count, self.pool.block_size) <= self.pool.n_free

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
        candidates = [candidate for candidate in self.running if candidate not in chosen]
        victim = max(candidates, key=lambda candidate: (-candidate.request.priority, candidate.order))
        self._preempt(victim, preempted)
        return victim is not sequence

    def _preempt(self, sequence: Sequence, preempted: list[Sequence]) -> None:
        preempted.append(sequence)
        self._queues.preempt(sequence, self.n_ctx)
