"""Prompts that part from earlier ones within a block: which cells they find, and what becomes of those."""

from __future__ import annotations

import numpy as np
import pytest

from graphml.ir.cell_groups import CellGroup
from graphml.runtime.blocks.begun_blocks import MOST_COMPARED, BegunBlock, BegunBlocks
from graphml.runtime.blocks.block_content import Prefix
from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.blocks.request import Request
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.blocks.window_blocks import WindowBlocks, WindowRoom
from graphml.runtime.loop.scheduler import Scheduler
from graphml.runtime.plans.checkpoints import Checkpoints
from graphml.runtime.plans.step_plan import Rows
from tests.looped import looped
from tests.runtime.made_up_runner import SIZE, run, scheduler_of

EMPTY, OTHER = Prefix.empty(), Prefix.empty(b"other")


def ids_of(*ids: int) -> np.ndarray:
    return np.array(ids, np.int32)


def ended(scheduler: Scheduler, ids: list[int], order: int = 0, **more: bytes) -> Rows:
    """The rows that begin a prompt, which is computed and ends."""
    sequence = Sequence(Request(np.array(ids, np.int32), **more), order)  # type: ignore[arg-type]
    scheduler.add(sequence)
    rows = run(scheduler).rows[-1]
    scheduler.remove(sequence)
    return rows


def test_the_most_of_the_next_tokens_is_found() -> None:
    begun = BegunBlocks()
    begun.add(3, EMPTY, ids_of(1, 2, 3, 4))
    begun.add(5, EMPTY, ids_of(1, 2, 9))
    assert begun.longest(ids_of(1, 2, 3, 7, 7), EMPTY) == BegunBlock(3, 3)
    assert begun.longest(ids_of(1, 2, 9, 9), EMPTY) == BegunBlock(5, 3)
    assert begun.longest(ids_of(1, 2), EMPTY) == BegunBlock(5, 2)  # the latest of several
    assert begun.longest(ids_of(1, 2), OTHER) is begun.longest(ids_of(7), EMPTY) is None
    assert begun.longest(ids_of(), EMPTY) is None
    assert begun.within(ids_of(1, 2, 9, 8), EMPTY) == [BegunBlock(5, 3)]
    begun.forget(5)
    begun.forget(5)
    assert begun.longest(ids_of(1, 2, 9), EMPTY) == BegunBlock(3, 2)
    begun.forget(3)
    assert not begun._blocks


def test_only_the_latest_blocks_are_compared() -> None:
    begun = BegunBlocks()
    for block in range(MOST_COMPARED + 1):
        begun.add(block, EMPTY, ids_of(1, block))
    assert begun.longest(ids_of(1, 0), EMPTY) == BegunBlock(MOST_COMPARED, 1)
    assert begun.longest(ids_of(1, 1), EMPTY) == BegunBlock(1, 2)


def test_a_prompt_copies_what_it_shares_of_a_block() -> None:
    """Of a full block, and of one that was left filled partly; nothing is held beside its own blocks."""
    scheduler = scheduler_of(16)
    ended(scheduler, [5, 6, 7, 8, 9, 10])
    of_full = ended(scheduler, [5, 6, 7, 1, 1, 1])
    of_partial = ended(scheduler, [5, 6, 7, 8, 9, 1, 1])
    for rows, found in ((of_full, 3), (of_partial, 5)):
        (move,) = rows.moves
        assert (rows.start, rows.sequence.n_cached, move.difference) == (found, found, 0)
        assert len(move.sources) == found % SIZE
        assert not set(move.sources // SIZE) & set(move.targets // SIZE)
    assert scheduler.pool.n_used == 0


@pytest.mark.parametrize("n", [1, 2])
def test_cells_that_were_never_copied_are_not_found(n: int) -> None:
    """A step fails before its moves: the blocks that it would have copied to hold nothing."""
    scheduler = scheduler_of(16)
    first = ended(scheduler, [5, 6, 7, 8, 9, 10]).sequence
    (of_first,) = (one.block for one in scheduler.pool.begun_within(ids_of(9, 10), first_prefix(scheduler)))
    request = Request(ids_of(5, 6, 7, 8, 9, 1), n=n)
    failing = [Sequence(request, 1 + i) for i in range(n)]
    for one in failing:
        scheduler.add(one)
    plan = scheduler.schedule(100)
    assert plan is not None
    assert [len(rows.moves) for rows in plan.rows] == [1] * n
    assert first.blocks == []
    for one in failing:
        scheduler.remove(one)
    (move,) = ended(scheduler, [5, 6, 7, 8, 9, 2], 9).moves
    assert set(move.sources // SIZE) == {of_first}


def first_prefix(scheduler: Scheduler) -> Prefix:
    """What the block of the ids 5 to 8 ends."""
    (found,) = scheduler.pool.match(ids_of(5, 6, 7, 8), EMPTY)[1]
    return found


def test_a_block_that_holds_less_than_another_is_not_kept() -> None:
    """Neither beside a block that was left filled partly, nor beside a full one."""
    scheduler = scheduler_of(16)
    ended(scheduler, [5, 6, 7])
    ended(scheduler, [5, 6])
    assert scheduler.pool.n_kept == 1
    ended(scheduler, [5, 6, 7, 8])
    ended(scheduler, [5, 6, 7])
    assert scheduler.pool.n_kept == 1


def test_the_last_id_is_computed_though_its_cell_is_known() -> None:
    scheduler = scheduler_of(16)
    assert [ended(scheduler, [5, 6, 7]).start for _ in range(2)] == [0, 2]


def test_blocks_of_the_same_tokens_are_kept_once() -> None:
    scheduler = scheduler_of(16)
    for _ in range(5):
        ended(scheduler, [5, 6, 7])
    assert scheduler.pool.n_kept == 1
    ended(scheduler, [5, 6, 7, 8, 9])  # more of the same: a full block and one id
    assert scheduler.pool.n_kept == 2


def test_parts_of_blocks_are_shared_by_equal_keys_of_content_only() -> None:
    scheduler = scheduler_of(16)
    assert [ended(scheduler, [5, 6, 7], extra=extra).start for extra in (b"a", b"b", b"a")] == [0, 0, 2]


def test_a_part_is_gone_with_its_block() -> None:
    scheduler = scheduler_of(2, n_ctx=2 * SIZE)
    ended(scheduler, [5, 6, 7])
    ended(scheduler, [1] * (2 * SIZE - 1))
    assert ended(scheduler, [5, 6, 7]).start == 0


def test_without_a_block_for_the_copy_the_prompt_is_computed() -> None:
    """The one block that is free is the one that the copy would be of."""
    scheduler = scheduler_of(1, n_ctx=SIZE)
    assert [ended(scheduler, [5, 6, 7]).start for _ in range(2)] == [0, 0]


@looped("kind", ["checkpoints", "recurrent", "window", "no prefixes"])
def test_no_parts_where_cells_are_not_all_that_a_prompt_needs(kind: str) -> None:
    windows = [WindowBlocks(WindowRoom(CellGroup(2 * SIZE), 4, 64, 64, SIZE), 16)] if kind == "window" else []
    pool = BlockPool(16, SIZE, keep=kind not in ("no prefixes", "recurrent"), windows=windows)
    checkpoints = Checkpoints(4, SIZE, True, SIZE) if kind == "checkpoints" else None
    scheduler = Scheduler(pool, 4, 64, recurrent=kind == "recurrent", checkpoints=checkpoints)
    assert [ended(scheduler, [5, 6, 7]).start for _ in range(2)] == [0, 0]
    assert pool.n_kept == 0
