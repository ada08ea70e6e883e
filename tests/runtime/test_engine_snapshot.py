"""The snapshot of an engine: who runs, who waits for what, which blocks several hold, which are kept."""

from __future__ import annotations

import numpy as np

from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.blocks.request import Request
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.loop.engine_snapshot import snapshot
from graphml.runtime.loop.scheduler import Scheduler

SIZE = 4
SAME = [1, 2, 3, 4, 5, 6, 7, 8]


def sequence(order: int, ids: list[int]) -> Sequence:
    return Sequence(Request(np.array(ids, np.int32)), order)


def step(scheduler: Scheduler) -> None:
    plan = scheduler.schedule(32)
    assert plan is not None
    scheduler.computed(plan)
    for one in scheduler.running:
        if not one.n_behind:
            one.ids.append(0)


def test_sequences_blocks_and_reasons_are_those_of_the_scheduler() -> None:
    scheduler = Scheduler(BlockPool(16, SIZE), 2, 32)
    scheduler.add(sequence(0, [*SAME, 9]))
    step(scheduler)
    scheduler.add(sequence(1, [*SAME, 10]))
    scheduler.add(sequence(2, [20, 21]))
    step(scheduler)
    seen = snapshot(scheduler)
    first, second, third = seen.sequences
    assert (seen.n_blocks, seen.block_size, seen.kept) == (16, SIZE, ())
    assert [one.id for one in seen.sequences] == [0, 1, 2]
    assert [one.status for one in seen.sequences] == ["running", "running", "waiting"]
    assert first.blocks[:2] == second.blocks[:2]
    assert first.blocks[2] != second.blocks[2]
    assert (second.n_prompt, second.n_cached, second.n_computed, second.n_generated) == (9, 8, 9, 1)
    assert (first.waits_for, third.waits_for, third.blocks) == ("", "slot", ())


def test_blocks_of_ended_sequences_are_kept() -> None:
    scheduler = Scheduler(BlockPool(16, SIZE), 2, 32)
    ended = sequence(0, [*SAME, 9])
    scheduler.add(ended)
    step(scheduler)
    held = snapshot(scheduler).sequences[0].blocks
    scheduler.remove(ended)
    seen = snapshot(scheduler)
    assert seen.sequences == ()
    assert set(seen.kept) == set(held[:2])  # the third is not full
