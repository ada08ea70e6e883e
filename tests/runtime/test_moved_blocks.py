"""Context shifts and forks of sequences in a scheduler: which cells are moved, and what others keep."""

from __future__ import annotations

import numpy as np

from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.blocks.overflow import Overflow
from graphml.runtime.blocks.request import Request
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.loop.scheduler import Scheduler
from graphml.runtime.loop.siblings import take_over
from tests.looped import looped
from tests.runtime.made_up_runner import (
    SIZE,
    run,
    scheduler_of,
    sequence_of,
)


def full_sequence(scheduler: Scheduler, keep: int) -> Sequence:
    """A sequence that is one id short of a full context, alone."""
    sequence = sequence_of(scheduler.n_ctx - 1, full=Overflow("shift", keep))
    scheduler.add(sequence)
    run(scheduler)
    return sequence


def test_a_full_context_moves_cells_within_its_own_blocks() -> None:
    scheduler = scheduler_of(4)
    sequence = full_sequence(scheduler, keep=3)
    ids, blocks = list(sequence.ids), list(sequence.blocks)
    (rows,) = run(scheduler).rows
    assert sequence.ids[:-1] == ids[:3] + ids[9:]
    assert sequence.blocks == blocks[:3]  # ten ids
    (move,) = rows.moves
    cells = [block * SIZE + i for block in blocks for i in range(SIZE)]
    assert move.sources.tolist() == cells[9:15]
    assert (move.targets.tolist(), move.difference) == (cells[3:9], -6)


def test_moved_blocks_are_found_by_nobody() -> None:
    scheduler = scheduler_of(16, n_ctx=16)
    sequence = full_sequence(scheduler, keep=5)
    first = list(sequence.ids)
    while sequence.n_dropped == 0 or len(sequence.ids) < 16:
        run(scheduler)
    scheduler.remove(sequence)
    for ids, found in ((first, 1), (sequence.ids, 1), (first[:12] + sequence.ids[12:], 1)):
        blocks, _ = scheduler.pool.match(np.array(ids, np.int32), sequence.prefix)
        assert len(blocks) == found  # the first alone is as it was computed


def test_a_shift_leaves_shared_blocks_to_the_others() -> None:
    scheduler = scheduler_of(16, n_ctx=16)
    sequence = sequence_of(13, full=Overflow("shift", 2))
    other = Sequence(sequence.request, 1)
    for one in (sequence, other):
        scheduler.add(one)
        run(scheduler)
    before = list(other.blocks)
    while not sequence.n_dropped:
        rows = run(scheduler).rows
    assert other.blocks[:3] == before[:3]
    assert not set(other.blocks) & set(sequence.blocks)
    copied, moved = rows[0].moves
    assert (len(copied.sources), copied.difference, moved.difference) == (2, 0, -7)


def siblings_of(scheduler: Scheduler, n_ids: int, n: int) -> list[Sequence]:
    request = Request(np.arange(n_ids, dtype=np.int32), n=n)
    made = [Sequence(request, index, index) for index in range(n)]
    for one in made:
        scheduler.add(one)
    return made


@looped("keep", [True, False])
@looped("n_ids", [3, 8, 22])
def test_the_prompt_of_several_continuations_is_computed_once(n_ids: int, keep: bool) -> None:
    scheduler = Scheduler(BlockPool(64, SIZE, keep), 4, 64 * SIZE)
    siblings = siblings_of(scheduler, n_ids, 4)
    first, second = run(scheduler), run(scheduler)
    assert [rows.count for rows in first.rows] == [n_ids - 1]
    assert [(rows.start, rows.count) for rows in second.rows] == [(n_ids - 1, 1)] * 4
    own = {one.blocks[-1] for one in siblings}
    assert len(own) == 4
    assert len({tuple(one.blocks[:-1]) for one in siblings}) == 1
    partly = (n_ids - 1) % SIZE
    assert [[len(move.sources) for move in rows.moves] for rows in second.rows[1:]] == [
        [partly] if partly else []
    ] * 3


def test_a_recurrent_sequence_forks_from_the_states_before_the_last_id() -> None:
    scheduler = Scheduler(BlockPool(64, SIZE, False), 3, 64 * SIZE, recurrent=True)
    siblings = siblings_of(scheduler, 10, 4)
    run(scheduler)
    rows = run(scheduler).rows
    assert [one.states_of for one in rows] == [None, siblings[0].slot, siblings[0].slot]
    scheduler.remove(siblings[1])  # the fourth has its slot now, and the others' states have seen more
    rows = run(scheduler).rows
    assert [(one.start, one.states_of) for one in rows if one.sequence is siblings[3]] == [(0, None)]


def test_states_that_have_read_a_wrong_draft_are_not_taken_over() -> None:
    scheduler = scheduler_of(16, recurrent=True)
    sibling, sequence = siblings_of(scheduler, 8, 2)
    for one in (sibling, sequence):
        one.ids += [5] * 2
    sibling.blocks, sibling.n_computed, sibling.n_again = scheduler.pool.allocate(3) or [], 8, 1
    assert take_over(sequence, sibling, scheduler.pool, recurrent=True) == ((), None)
    assert sequence.n_computed == 0


def test_a_sequence_that_has_more_than_its_prompt_takes_nothing_over() -> None:
    """Its checkpoint is behind the prompt, and its sibling's states are those of the prompt alone."""
    scheduler = scheduler_of(16, recurrent=True)
    sibling, sequence = siblings_of(scheduler, 8, 2)
    for one, n_computed in ((sibling, 8), (sequence, 12)):
        one.ids += [5] * 6
        one.blocks = scheduler.pool.allocate(3) or []
        one.n_computed = n_computed
    assert take_over(sequence, sibling, scheduler.pool, recurrent=True) == ((), None)
    assert sequence.n_computed == 12
