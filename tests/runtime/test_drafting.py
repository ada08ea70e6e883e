"""Drafts: how many rows they get, what acceptance does to them, and the distribution of what is sampled."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import numpy as np

from graphml.runtime.blocks.drafting import (
    Drafts,
    Proposal,
    StepTimes,
    draft_lengths,
    n_right,
    worth_rows,
)
from graphml.runtime.blocks.request import Request
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.plans.step_plan import Rows
from graphml.runtime.steps.sampled_rows import drafted_rows, sampled_rows
from graphml.sampling import SamplingParams

LOGITS = np.array([[0.3, -1, 2, 1.1, 0, 0.4, -2, 1.5], [1, 1.2, -0.5, 0, 0.3, 2, 0.1, -1]], np.float32)
CHI_SQUARE = 24.32
"""The 99.9th percentile of the chi-square distribution of 7 degrees of freedom."""


def chi_square(tokens: list[int], logits: np.ndarray) -> float:
    weights = np.exp(logits.astype(float))
    expected = len(tokens) * weights / weights.sum()
    return float((((np.bincount(tokens, minlength=8) - expected) ** 2) / expected).sum())


def test_tokens_with_drafts_have_the_distribution_of_those_without() -> None:
    """100,000 draws in all, of both rows."""
    draft = 2
    request = Request(np.array([1], np.int32), SamplingParams(temperature=1.0))
    sequence = Sequence(request, 0, seed=11)
    sequence.draft = [draft]
    rows, outputs = Rows(sequence, 0, 2, 2, n_drafted=1), {"logits": LOGITS}
    first, second = list[int](), list[int]()
    while len(first) + len(second) < 100_000:
        (token,) = sampled_rows(outputs, {0: sequence}, 8, Path())
        further = drafted_rows(outputs, {0: rows}, {sequence: token}, 8, Path())[sequence]
        assert isinstance(token, int)
        assert len(further) == (token == draft)
        first.append(token)
        second += further  # type: ignore[arg-type]
    assert chi_square(first, LOGITS[0]) < CHI_SQUARE
    assert chi_square(second, LOGITS[1]) < CHI_SQUARE


def test_lengths_are_the_best_of_all() -> None:
    times = {rows: 10 + 1.7 * rows for rows in range(1, 17)}
    for rates in product((0.1, 0.5, 0.8, 0.97), repeat=2):
        drafts = [(6, rate) for rate in rates]

        def speed(lengths: tuple[int, ...], rates: tuple[float, ...] = rates) -> float:
            tokens = sum(sum(p**i for i in range(n + 1)) for p, n in zip(rates, lengths, strict=True))
            return tokens / times[2 + sum(lengths)]

        best = max(speed(lengths) for lengths in product(range(7), repeat=2))
        found = draft_lengths(2, drafts, times.__getitem__)
        worth = best > 1.05 * speed((0, 0))
        assert math.isclose(speed(tuple(found)), best if worth else speed((0, 0)))


def test_no_more_rows_than_there_are() -> None:
    assert draft_lengths(16, [(9, 0.99)], lambda rows: 1.0) == [0]
    assert draft_lengths(10, [(9, 0.99)], lambda rows: 1.0) == [6]
    assert draft_lengths(1, [(9, 0.99)], lambda rows: float(rows)) == [0]  # a row costs what it gives


def test_a_draft_is_right_up_to_the_first_id_that_did_not_come() -> None:
    assert n_right([4, 5, 6], [4, 5]) == 2
    assert n_right([4, 5], [4, 5, 6]) == 2
    assert n_right([4, 5, 6], [4, 7, 6]) == 1
    assert n_right([4], [None]) == n_right([4], []) == n_right([], [4]) == 0


def test_a_proposal_with_fewer_ids_worth_their_rows_than_wanted_is_left_out() -> None:
    times = StepTimes()
    times.measured(1, 1.0)
    times.measured(4, 1.01)
    times.measured(5, 100.0)
    drafts = [Drafts(Says(), 4, n_min) for n_min in (0, 3, 4)]
    proposed = [drafted.propose([1], 9) for drafted in drafts]
    found = [worth_rows([one], times, 16, None) for one in zip(drafts, proposed, strict=True)]
    assert [list(map(len, one)) for one in found] == [[3], [3], [0]]
    assert worth_rows([(drafts[0], [])], times, 16, None) == [[]]


class Says:
    costs_time = False

    def propose(self, ids: list[int], count: int) -> Proposal:
        return Proposal([7] * count, "long")

    def close(self) -> None: ...


def test_rates_follow_what_came_whether_it_was_drafted_or_not() -> None:
    right, wrong = Drafts(Says(), 4), Drafts(Says(), 4)
    ids = [1]
    for _ in range(6):
        right.propose(ids, 9)
        ids += [7, 7]
    right.propose(ids, 9)
    for i in range(6):
        wrong.propose(list(range(10 + i)), 9)
    assert right.rate > 0.9
    assert wrong.rate < 0.4
    assert len(right.propose(ids, 9)) == 4
    assert right.propose(ids, 0) == []


def test_times_that_were_not_measured_are_between_those_that_were() -> None:
    times = StepTimes()
    assert times.of(8) > times.of(2) > times.of(1) == 1.0
    times.measured(1, 10.0)
    times.measured(9, 30.0)
    assert times.of(5) == 20.0
    assert times.of(12) > 30.0
    for _ in range(50):
        times.measured(1, 12.0)
    assert 11.5 < times.of(1) < 12.0


def test_a_disturbed_step_of_one_row_is_no_measure() -> None:
    times = StepTimes()
    times.measured(1, 500.0)
    times.measured(16, 30.0)
    assert times.of(1) < 30.0
    assert draft_lengths(1, [(15, 0.05)], times.of) == [0]
