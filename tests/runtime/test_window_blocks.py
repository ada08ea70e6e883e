"""Blocks of layers with a window in a scheduler: what rows see is there, what is behind is given back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphml.ir.cell_groups import CellGroup
from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.blocks.window_blocks import WindowBlocks, WindowRoom
from graphml.runtime.loop.scheduler import Scheduler
from tests.runtime.made_up_runner import (
    SIZE,
    play,
    run,
    sequence_of,
)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**9),
    st.lists(
        st.builds(CellGroup, window=st.integers(1, 20)) | st.builds(CellGroup, chunk=st.integers(1, 20)),
        min_size=1, max_size=2, unique=True,
    ),
)  # fmt: skip
def test_windows_hold_what_rows_see(seed: int, groups: list[CellGroup]) -> None:
    """In pools for as few sequences as one; what comes out is the same."""
    play(seed, 40, groups=groups)


def window_scheduler(n_blocks: int = 64, n_sequences: int = 4) -> tuple[Scheduler, WindowBlocks]:
    room = WindowRoom(CellGroup(window=2 * SIZE), n_sequences, n_blocks * SIZE, 8, SIZE)
    window = WindowBlocks(room, n_blocks)
    return Scheduler(BlockPool(n_blocks, SIZE, windows=[window]), 4, n_blocks * SIZE), window


def test_a_window_holds_no_more_blocks_than_it_sees() -> None:
    scheduler, window = window_scheduler()
    long = sequence_of(120)
    scheduler.add(long)
    while long.n_behind:
        run(scheduler, budget=8)
        assert window.n_blocks - window.n_free <= 3
        if long.n_generated:
            break
    assert len(long.blocks) == 30


def test_a_prefix_is_found_where_its_last_window_is() -> None:
    """And not where others have taken that; computed once more, it is found again."""
    scheduler, _ = window_scheduler(128)
    found = []

    def ended(sequence: Sequence) -> None:
        scheduler.add(sequence)
        while not sequence.n_generated:
            run(scheduler, budget=8)
        found.append(sequence.n_cached)
        scheduler.remove(sequence)

    ended(sequence_of(60))
    ended(sequence_of(62, 1))
    assert found == [0, 60]
    ended(sequence_of(200, 2, first=1000))  # takes every block of windows
    ended(sequence_of(62, 3))
    ended(sequence_of(62, 4))
    assert found[2:] == [0, 0, 60]


def test_as_many_sequences_run_as_windows_have_room_for() -> None:
    scheduler, _ = window_scheduler(n_sequences=2)
    for i in range(4):
        scheduler.add(sequence_of(20, i, first=100 * i))
    for _ in range(10):
        run(scheduler, budget=8)
        assert len(scheduler.running) <= 2
    assert len(scheduler.running) == 2


@pytest.mark.parametrize(("window", "n_ctx", "rows", "n_sequences"), [(4, 32, 256, 8), (8, 32, 64, 3)])
def test_a_step_may_hold_the_prompts_of_all_sequences(
    window: int, n_ctx: int, rows: int, n_sequences: int
) -> None:
    """Longer together than the context of one."""
    room = WindowRoom(CellGroup(window=window), n_sequences, n_ctx, rows, SIZE)
    n_blocks = 2 * n_sequences * n_ctx // SIZE
    pool = BlockPool(n_blocks, SIZE, windows=[WindowBlocks(room, n_blocks)])
    scheduler = Scheduler(pool, n_sequences, n_ctx, prompt_cap=rows)
    for order in range(n_sequences):
        scheduler.add(sequence_of(n_ctx - 1, order, first=100 * order))
    assert run(scheduler, budget=rows).n_rows == min(rows, n_sequences * (n_ctx - 1))
