"""Where an engine keeps copies of recurrent states, what is found of them, and which go first."""

from __future__ import annotations

import numpy as np
import pytest

from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.blocks.request import Request
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.loop.scheduler import Scheduler
from graphml.runtime.plans.checkpoints import Checkpoints
from tests.runtime.made_up_runner import run

SIZE = 4
SYSTEM = list(range(100, 120))


def scheduler_of(
    n_blocks: int = 64, count: int = 8, with_cells: bool = True, apart: int = 1000, max_sequences: int = 4
) -> Scheduler:
    checkpoints = Checkpoints(count, SIZE, with_cells, apart)
    return Scheduler(BlockPool(n_blocks, SIZE), max_sequences, n_blocks * SIZE, checkpoints=checkpoints)


def sequence_of(ids: list[int], order: int = 0, extra: bytes = b"") -> Sequence:
    return Sequence(Request(np.array(ids, np.int32), extra=extra), order)


def computed(scheduler: Scheduler, ids: list[int], n_generated: int = 1, extra: bytes = b"") -> Sequence:
    """A sequence that ran alone and ended."""
    one = sequence_of(ids, extra=extra)
    scheduler.add(one)
    while one.n_generated < n_generated:
        run(scheduler)
    scheduler.remove(one)
    return one


def kept(scheduler: Scheduler) -> list[int]:
    assert scheduler.checkpoints is not None
    return sorted(one.n for one in scheduler.checkpoints._kept)


def test_a_prompt_ends_a_chunk_at_its_last_block_and_keeps_its_states_there() -> None:
    scheduler = scheduler_of()
    scheduler.add(sequence_of(SYSTEM[:14]))
    (first,), (second,) = run(scheduler).rows, run(scheduler).rows
    assert (first.start, first.count, first.n_outputs, second.count, second.n_outputs) == (0, 12, 0, 2, 1)
    assert first.keep is not None
    assert (first.restore, second.restore, second.keep) == (None, None, None)


def test_the_same_prompt_and_its_next_turn_go_on_from_there() -> None:
    scheduler = scheduler_of()
    computed(scheduler, SYSTEM[:14])
    again = computed(scheduler, SYSTEM[:14])
    assert again.n_cached == 12
    answered = computed(scheduler, [*SYSTEM[:14], 7, 8, 9], n_generated=7)
    assert answered.n_cached == 12
    next_turn = computed(scheduler, [*answered.ids[:-1], 5, 6])
    assert next_turn.n_cached == 20  # the checkpoint that followed what was generated


def test_a_prompt_whose_ids_differ_or_mean_something_else_finds_nothing() -> None:
    scheduler = scheduler_of()
    computed(scheduler, SYSTEM[:14], extra=b"a")
    assert computed(scheduler, SYSTEM[:14], extra=b"b").n_cached == 0
    assert computed(scheduler, [1, *SYSTEM[1:14]], extra=b"a").n_cached == 0
    assert computed(scheduler, SYSTEM[:12], extra=b"a").n_cached == 0  # its last id is computed


def test_what_two_prompts_share_a_third_finds() -> None:
    """Their own ends are of no use to it: the second keeps a copy where it leaves the first."""
    scheduler = scheduler_of()
    found = [computed(scheduler, [*SYSTEM, *range(first, first + 9)]).n_cached for first in (1, 20, 40)]
    assert found == [0, 0, 20]


def test_prompts_that_come_together_share_what_one_computes() -> None:
    scheduler = scheduler_of()
    together = [sequence_of([*SYSTEM, *range(first, first + 9)], first) for first in (1, 20, 40)]
    for one in together:
        scheduler.add(one)
    while any(not one.n_generated for one in together):
        run(scheduler)
    assert [one.n_cached for one in together] == [0, 20, 20]


def test_one_that_comes_while_another_computes_its_prompt_shares_it() -> None:
    scheduler = scheduler_of()
    first, second = sequence_of([*SYSTEM, *range(9)]), sequence_of([*SYSTEM, *range(20, 29)], 1)
    scheduler.add(first)
    run(scheduler, budget=6)
    scheduler.add(second)
    while not second.n_generated:
        run(scheduler)
    assert second.n_cached == 20


@pytest.mark.parametrize(("with_cells", "found"), [(True, 0), (False, 12)])
def test_blocks_are_needed_where_there_are_cells(with_cells: bool, found: int) -> None:
    scheduler = scheduler_of(8, with_cells=with_cells, max_sequences=1)
    computed(scheduler, SYSTEM[:14])
    computed(scheduler, list(range(27)))  # whose blocks are those of the first
    assert 12 in kept(scheduler)
    assert computed(scheduler, SYSTEM[:14]).n_cached == found


def test_a_sequence_is_followed_by_one_checkpoint() -> None:
    scheduler = scheduler_of(apart=8)
    one = sequence_of(list(range(50)))
    scheduler.add(one)
    while one.n_generated < 30:
        run(scheduler, budget=10)
    assert kept(scheduler) == [48, 76]  # the prompt's own, and the one that follows


def test_the_least_recently_used_goes_first() -> None:
    scheduler = scheduler_of(count=2)
    computed(scheduler, SYSTEM[:6])
    computed(scheduler, list(range(10)))
    assert computed(scheduler, SYSTEM[:6]).n_cached == 4
    computed(scheduler, list(range(30, 48)))
    assert kept(scheduler) == [4, 16]
    assert computed(scheduler, SYSTEM[:6]).n_cached == 4


@pytest.mark.parametrize(("with_cells", "start"), [(True, 8), (False, 24)])
def test_a_preempted_sequence_goes_on_from_a_checkpoint(with_cells: bool, start: int) -> None:
    """From the one that follows it, or, where its last blocks were taken, from that of its prompt."""
    scheduler = scheduler_of(14, with_cells=with_cells)
    old, new = sequence_of(SYSTEM), sequence_of(list(range(12)), 1)
    scheduler.add(old)
    scheduler.add(new)
    while not new.n_preempted:
        run(scheduler)
    scheduler.remove(old)
    (rows,) = run(scheduler).rows
    assert rows.sequence is new
    assert rows.restore is not None
    assert rows.start == start


def test_a_copy_that_was_not_made_is_free_again() -> None:
    scheduler = scheduler_of(count=1)
    one = sequence_of(SYSTEM[:18])
    scheduler.add(one)
    plan = scheduler.schedule(100)
    assert plan is not None
    assert plan.rows[0].keep == 0
    scheduler.remove(one)  # its step has failed
    assert computed(scheduler, SYSTEM[:18]).n_cached == 0
    assert kept(scheduler) == [16]


def test_two_steps_of_one_plan_share_the_last_copy() -> None:
    """What is restored is restored before anything is kept, so a copy may be both."""
    scheduler = scheduler_of(count=1)
    computed(scheduler, SYSTEM[:9])
    scheduler.add(sequence_of(SYSTEM[:9] + list(range(8)), 1))
    (rows,) = run(scheduler).rows
    assert (rows.start, rows.restore, rows.keep) == (8, 0, 0)
