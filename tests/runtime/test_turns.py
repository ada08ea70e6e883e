"""Requests with compile options of their own: which steps they share, and that nobody waits for ever."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphml.compiler.options import CompileOptions
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.loop.scheduler import Scheduler
from graphml.runtime.steps.guidance import GuidancePair
from tests.runtime.made_up_runner import KINDS, play, run, scheduler_of, sequence_of

KEPT, OTHER = CompileOptions(keep=("a",)), CompileOptions(keep=("b",))


def ran(scheduler: Scheduler, n_steps: int) -> list[list[int]]:
    """The orders of the sequences of so many steps."""
    return [[rows.sequence.order for rows in run(scheduler).rows] for _ in range(n_steps)]


def added(scheduler: Scheduler, *sequences: Sequence) -> None:
    for sequence in sequences:
        scheduler.add(sequence)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_every_request_ends_with_what_it_gives_alone(kind: str, seed: int) -> None:
    play(seed, 40, kind=kind, texts=True, probed=True)


def test_equal_options_share_steps_and_others_have_every_other_one() -> None:
    scheduler = scheduler_of(64, max_sequences=8)
    added(scheduler, sequence_of(3), sequence_of(3, 1, first=9))
    added(scheduler, sequence_of(3, 2, options=KEPT), sequence_of(3, 3, options=OTHER))
    added(scheduler, sequence_of(3, 4, options=CompileOptions(keep=("a",))))
    plain = [0, 1]
    steps = ran(scheduler, 16)[8:]  # when all run
    assert steps[::2] == [plain] * 4 or steps[1::2] == [plain] * 4
    others = [step for step in steps if step != plain]
    assert sorted(map(sorted, others)) == [[2, 4], [2, 4], [3], [3]]


def test_patched_requests_have_steps_of_their_own() -> None:
    scheduler = scheduler_of(64)
    added(scheduler, *(sequence_of(3, i, options=KEPT, patches={"a": abs}) for i in range(2)))
    assert sorted(ran(scheduler, 8)[2:]) == [[0]] * 3 + [[1]] * 3


@pytest.mark.parametrize("waiting", [None, KEPT])
def test_who_waits_gets_a_slot_though_others_keep_coming(waiting: CompileOptions | None) -> None:
    """One slot, and after each step a new request that is done with it, of the other kind or of new ones."""
    scheduler, order = scheduler_of(64, max_sequences=1), 1
    old = sequence_of(3, options=None if waiting else KEPT)
    late = sequence_of(3, order, options=waiting)
    added(scheduler, old, late)
    for _ in range(6):
        (rows,) = run(scheduler).rows
        if rows.sequence is late:
            break
        scheduler.remove(rows.sequence)
        order += 1
        more = {"options": OTHER, "patches": {"a": abs}} if waiting else {"options": KEPT}
        added(scheduler, sequence_of(3, order, **more))
    assert rows.sequence is late


def test_nobody_overtakes_who_waits_for_a_turn() -> None:
    scheduler = scheduler_of(64, max_sequences=2)
    first, second = sequence_of(3, 1, options=OTHER), sequence_of(3, 2)
    added(scheduler, sequence_of(3, options=KEPT))
    run(scheduler)
    added(scheduler, first, second)
    assert ran(scheduler, 4)[-1] == [1]
    assert (first.slot >= 0, second.slot) == (True, -1)


def test_who_runs_gets_its_turn_though_new_kinds_keep_coming() -> None:
    scheduler = scheduler_of(64, max_sequences=2)
    old = sequence_of(3, options=KEPT)
    added(scheduler, old)
    run(scheduler)
    served = 0
    for order in range(1, 9):
        new = sequence_of(3, order, options=OTHER, patches={"a": abs})
        added(scheduler, new)
        (rows,) = run(scheduler).rows
        served += rows.sequence is old
        if rows.sequence is not old:
            scheduler.remove(rows.sequence)
    assert served >= 3


@pytest.mark.parametrize("options", [None, KEPT])
def test_another_kind_that_waits_takes_no_slot(options: CompileOptions | None) -> None:
    """A pair whose first waits for the second, which reads its prompt still: nobody is preempted for that."""
    scheduler = scheduler_of(64, max_sequences=2, n_ctx=200)
    leader, negative = sequence_of(3), sequence_of(60, 1, first=70)
    pair = GuidancePair(leader, negative, 2.0)
    added(scheduler, leader, negative, sequence_of(3, 2, first=9, options=options))
    for _ in range(5):
        plan = scheduler.schedule(10)
        assert plan is not None
        assert plan.rows
        assert not plan.preempted
        scheduler.computed(plan)
        for rows in plan.rows:
            if rows.n_outputs:
                pair.combined(rows.sequence, np.zeros(4, np.float32))
