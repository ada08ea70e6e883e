"""Rows of a step by the time that it may take: longer where many prompts wait beside generated tokens."""

from __future__ import annotations

from graphml.runtime.loop.step_budget import FEWEST, StepBudget
from tests.looped import looped
from tests.runtime.made_up_runner import run, scheduler_of, sequence_of


def _at(row_s: float, most: int = 1000) -> StepBudget:
    budget = StepBudget(0.05, most)
    budget.measured(100, 100 * row_s)
    return budget


def test_without_generated_tokens_a_step_is_as_long_as_it_can_be() -> None:
    assert _at(0.001).rows(0, 5) == 1000


@looped(
    ("n_decoding", "n_prompts", "rows"), [(8, 0, 50), (7, 1, 75), (9, 3, 100), (1, 31, 100), (24, 8, 100)]
)
def test_steps_are_twice_as_long_where_many_prompts_wait(n_decoding: int, n_prompts: int, rows: int) -> None:
    assert _at(0.001).rows(n_decoding, n_prompts) == rows


def test_prompts_have_some_rows_however_slow_a_step_is() -> None:
    assert _at(1.0).rows(8, 1) == 8 + FEWEST


def test_prompts_are_those_that_run_and_those_that_might() -> None:
    scheduler = scheduler_of(64, max_sequences=3)
    for i in range(6):
        scheduler.add(sequence_of(22, i, first=30 * i))
    assert scheduler.n_prompts == 3  # no more can run
    run(scheduler, budget=30)
    assert [one.n_behind > 1 for one in scheduler.running] == [False, True]
    assert scheduler.n_prompts == 2  # the one that is being read, and one more
