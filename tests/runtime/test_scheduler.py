"""The scheduler without a model: random requests, and what it does with chosen ones."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphml.errors import UsageError
from graphml.ir.cell_groups import CellGroup
from graphml.runtime.blocks.sequence import Sequence, Status
from tests.runtime.made_up_runner import (
    KINDS,
    play,
    run,
    scheduler_of,
    sequence_of,
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_every_request_ends_with_what_it_gives_alone(kind: str, seed: int) -> None:
    """Planted faults were found by 20 seeds, or by 60 neither."""
    play(seed, 40, kind=kind)


@pytest.mark.parametrize("groups", [(), (CellGroup(5),)], ids=["one", "windows"])
@pytest.mark.parametrize("kind", ["attention", "hybrid", "recurrent"])
def test_drafts_change_nothing_that_comes_out(kind: str, groups: tuple[CellGroup, ...]) -> None:
    if kind != "attention" and groups:
        pytest.skip("take no drafts beside windows")
    runs = [play(seed, 40, kind=kind, groups=groups, drafts=True) for seed in range(20)]
    assert sum(one.n_accepted for one in runs) > (300 if kind == "attention" else 100)
    assert sum(one.n_drafted for one in runs) > sum(one.n_accepted for one in runs)
    assert (sum(one.n_again for one in runs) > 50) == (kind != "attention")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("groups", [(), (CellGroup(5),)], ids=["one", "windows"])
def test_texts_that_become_rows_change_nothing_beside_them(kind: str, groups: tuple[CellGroup, ...]) -> None:
    if kind in ("hybrid", "recurrent") and groups:
        pytest.skip("have no checkpoints beside windows")
    runs = [play(seed, 40, kind=kind, groups=groups, texts=True) for seed in range(20)]
    assert sum(one.n_texts for one in runs) > 100


@pytest.mark.parametrize("part", range(4))
def test_ten_thousand_steps(part: int) -> None:
    """A quarter of them each: small pools and large ones, with few requests and with many.

    Faults planted in the scheduler, the pool and checkpoints were found in the first 200 or not in 50,000.
    """
    chance, n_steps = random.Random(part), 0
    while n_steps < 2_500:
        n_requests, kind = chance.choice([10, 40, 200]), chance.choice(KINDS)
        texts = chance.random() < 0.3
        n_steps += play(chance.randrange(10**9), n_requests, kind=kind, texts=texts).n_steps


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("constant_hash", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_neither_the_hash_nor_the_prefix_cache_changes_what_comes_out(
    constant_hash: bool, keep: bool, kind: str
) -> None:
    for seed in range(5):
        play(seed, 40, constant_hash, keep, kind)


def test_a_long_prompt_leaves_the_others_their_rows() -> None:
    scheduler = scheduler_of(64, prompt_cap=8)
    short, long = sequence_of(3), sequence_of(100, 1, first=50)
    scheduler.add(short)
    run(scheduler)
    scheduler.add(long)
    plans = [run(scheduler, budget=20) for _ in range(5)]
    assert [[rows.count for rows in plan.rows] for plan in plans] == [[1, 8]] * 5
    assert [[rows.n_outputs for rows in plan.rows] for plan in plans] == [[1, 0]] * 5


def test_equal_prompts_that_come_together_are_computed_once() -> None:
    scheduler = scheduler_of(64)
    prompts = [sequence_of(22, i) for i in range(3)]
    for sequence in prompts:
        scheduler.add(sequence)
    assert [rows.sequence for rows in run(scheduler, budget=12).rows] == prompts[:1]
    assert [rows.sequence for rows in run(scheduler).rows] == prompts[:1]
    assert [rows.count for rows in run(scheduler).rows] == [1, 2, 2]
    assert scheduler.pool.n_shared == 5


def test_a_prompt_alone_takes_the_whole_step() -> None:
    scheduler = scheduler_of(64, prompt_cap=8)
    scheduler.add(sequence_of(100))
    assert [run(scheduler, budget=64).rows[0].count for _ in range(2)] == [64, 36]


def test_a_prompt_that_was_computed_before_costs_its_rest() -> None:
    scheduler = scheduler_of(64)
    first, second = sequence_of(18), sequence_of(18, 1)
    scheduler.add(first)
    run(scheduler)
    scheduler.remove(first)
    scheduler.add(second)
    (rows,) = run(scheduler).rows
    assert (second.n_cached, rows.start, rows.count) == (17, 17, 1)


def test_a_whole_prompt_that_was_computed_computes_its_last_id() -> None:
    scheduler = scheduler_of(64)
    first, second = sequence_of(16), sequence_of(16, 1)
    scheduler.add(first)
    run(scheduler)
    scheduler.add(second)
    rows = run(scheduler).rows[-1]
    assert (second.n_cached, rows.start, rows.count, rows.n_outputs) == (15, 15, 1, 1)


def test_prefixes_of_different_keys_of_content_are_not_shared() -> None:
    scheduler = scheduler_of(64)
    first, second = sequence_of(16, extra=b"a"), sequence_of(16, 1, extra=b"b")
    for sequence in (first, second):
        scheduler.add(sequence)
        run(scheduler)
    assert second.n_cached == 0
    assert scheduler.pool.n_shared == 0


def test_the_newest_gives_way_and_comes_back() -> None:
    scheduler = scheduler_of(6, n_ctx=20)
    old, new = sequence_of(8), sequence_of(8, 1, first=50)
    scheduler.add(old)
    scheduler.add(new)
    preempted: list[Sequence] = []
    while old.status is not Status.FINISHED:
        plan = run(scheduler)
        preempted += plan.preempted
        if len(old.ids) >= 20:
            scheduler.remove(old)
    assert preempted == [new]
    assert run(scheduler).rows[0].sequence is new
    assert new.n_preempted == 1


def test_a_larger_priority_goes_first() -> None:
    scheduler = scheduler_of(64, max_sequences=1)
    low, high = sequence_of(4), sequence_of(4, 1, first=9, priority=1)
    scheduler.add(low)
    scheduler.add(high)
    assert run(scheduler).rows[0].sequence is high


def test_a_larger_priority_keeps_its_blocks() -> None:
    """Smaller ones that generate give theirs to its prompt."""
    scheduler = scheduler_of(10)
    for order in range(3):
        scheduler.add(sequence_of(8, order, first=50 * order))
    for _ in range(3):
        run(scheduler)
    high = sequence_of(20, 9, first=900, priority=5)
    scheduler.add(high)
    while not high.n_generated:
        run(scheduler)
        for one in [*scheduler.running, *scheduler.waiting]:
            if len(one.ids) >= 36:
                scheduler.remove(one)
    assert high.n_preempted == 0


def test_keys_share_prompts_by_their_weights() -> None:
    """One key asks for a hundred prompts at once, another then for a few, with twice the weight."""
    scheduler = scheduler_of(400, max_sequences=1)
    many = [sequence_of(8, i, first=1000 * i, key="many") for i in range(40)]
    few = [sequence_of(8, 100 + i, first=7 + 1000 * i, key="few", weight=2.0) for i in range(10)]
    for sequence in (*many, *few):
        scheduler.add(sequence)
    served = []
    for _ in range(15):
        one = run(scheduler).rows[0].sequence
        served.append(one.request.key)
        scheduler.remove(one)
    assert Counter(served) == {"few": 10, "many": 5}


def test_what_could_never_fit_is_refused_when_it_comes() -> None:
    scheduler = scheduler_of(4)
    for n_ids in (0, 16, 17):
        with pytest.raises(
            UsageError, match=rf"wanted 1 to 15 ids.*got {n_ids}{': shorten it' if n_ids else '$'}"
        ):
            scheduler.add(sequence_of(n_ids))
    assert not scheduler
    with pytest.raises(UsageError, match=r"wanted room for a sequence of 17 tokens; the pool holds 16"):
        scheduler_of(4, n_ctx=17)


def test_deadlines_are_told() -> None:
    scheduler = scheduler_of(8)
    soon, late, never = sequence_of(4, deadline=1.0), sequence_of(4, 1, deadline=9.0), sequence_of(4, 2)
    for sequence in (soon, late, never):
        scheduler.add(sequence)
    assert scheduler.expired(0.5) == []
    assert scheduler.expired(1.0) == [soon]


@pytest.mark.parametrize("recurrent", [False, True])
def test_texts_need_no_slot_beside_sequences_that_have_all(recurrent: bool) -> None:
    """But of a recurrent model, whose slots hold states; a step that is begun ahead waits for texts, too."""
    scheduler = scheduler_of(8, max_sequences=1, recurrent=recurrent)
    text = sequence_of(4, 1, 20, pooling="last")
    scheduler.add(sequence_of(3))
    first = run(scheduler)
    scheduler.add(sequence_of(3, 2, 40))
    scheduler.add(text)
    again = run(scheduler)
    assert len(first.rows) == len(again.rows) == 1
    assert again.texts == (() if recurrent else (text,))
    assert [waiting.waits_for for waiting in scheduler.waiting] == ["slot"] * (2 if recurrent else 1)


def test_no_step_is_begun_ahead_of_a_text_that_waits() -> None:
    scheduler = scheduler_of(8, max_sequences=1)
    scheduler.add(sequence_of(3))
    run(scheduler)
    plan = scheduler.schedule(100)
    assert plan is not None
    scheduler.add(sequence_of(4, 1, 20, pooling="last"))
    assert scheduler.follow(plan) is None
