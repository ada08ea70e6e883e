"""The policy of steps that are submitted ahead, without a model: what follows, what is read, what counts."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Values

import numpy as np
import pytest

from graphml.compiler.options import DEFAULT, CompileOptions
from graphml.compiler.top_k_outputs import OF_ROW, SAMPLED, TOP_K_IDS, TOP_K_LOGITS
from graphml.runtime.blocks.request import Request
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.plans.step_plan import Rows, StepPlan
from graphml.runtime.steps.computed_plan import BegunPlan, Computed
from graphml.runtime.steps.run_ahead import RunAhead, following
from graphml.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0)
OF_A_ROW = SamplingParams(temperature=0.9, top_k=0, top_p=1.0)
TOP_P = SamplingParams(temperature=0.9, top_k=0, top_p=0.8)
TOP_K = SamplingParams(temperature=0.9, top_k=8)
PENALISED = SamplingParams(repeat_penalty=1.3)


class Submits:
    """Submits every plan. tokens: what the device samples; needs_row: of the next step that is read."""

    def __init__(self) -> None:
        self.wanted: list[set[str]] = []
        self.tokens, self.needs_row = (5,), False

    def submit(self, plan: StepPlan, after: BegunPlan | None, wanted: Values[str]) -> BegunPlan | None:
        self.wanted.append(set(wanted))
        return BegunPlan(plan, len(self.wanted), dict, 0.0)

    def finish(self, begun: BegunPlan, of: Mapping[int, Sequence]) -> Computed:
        return Computed([None], 0.0, device_tokens=self.tokens, needs_row=self.needs_row)


def plan_of(*params: SamplingParams, options: CompileOptions | None = None, max_tokens: int = 9) -> StepPlan:
    requests = [Request(np.array([1, 2, 3], np.int32), params=own, max_tokens=max_tokens) for own in params]
    return StepPlan(
        tuple(Rows(Sequence(request, i), 2, 1, 1) for i, request in enumerate(requests)), options=options
    )


@pytest.mark.parametrize(
    ("params", "wanted"),
    [
        ([GREEDY], {SAMPLED, OF_ROW}),
        ([OF_A_ROW], {SAMPLED, OF_ROW}),
        ([TOP_K], {SAMPLED, OF_ROW, TOP_K_IDS, TOP_K_LOGITS}),
        ([GREEDY, TOP_K], {SAMPLED, OF_ROW, TOP_K_IDS, TOP_K_LOGITS}),
        ([TOP_P], {SAMPLED, OF_ROW, TOP_K_IDS, TOP_K_LOGITS, "logits"}),
        ([TOP_P, GREEDY], None),
        ([PENALISED], None),
        ([GREEDY, PENALISED], None),
    ],
)
def test_what_is_read_of_a_step_follows_from_all_of_its_sequences(
    params: list[SamplingParams], wanted: set[str] | None
) -> None:
    runner = Submits()
    begun = RunAhead(runner).submit(plan_of(*params))
    assert (begun is None) == (wanted is None)
    assert runner.wanted == ([] if wanted is None else [wanted])


def test_captured_values_and_drafts_are_not_run_ahead() -> None:
    from dataclasses import replace

    assert RunAhead(Submits()).submit(plan_of(GREEDY, options=replace(DEFAULT, keep=("x",)))) is None
    scored = replace(plan_of(GREEDY).rows[0], n_scored=1)
    assert RunAhead(Submits()).submit(StepPlan((scored,))) is None


def test_rows_come_along_behind_one_that_was_needed() -> None:
    runner, plan = Submits(), plan_of(OF_A_ROW)
    ahead = RunAhead(runner)
    runner.needs_row = True
    for _ in range(10):
        begun = ahead.submit(plan)
        assert begun is not None
        ahead.read(begun, {})
        runner.needs_row = False
    assert ["logits" in wanted for wanted in runner.wanted] == [False, *[True] * 8, False]


def test_several_sequences_run_once_behind_a_row_that_was_needed() -> None:
    runner, plan = Submits(), plan_of(OF_A_ROW, OF_A_ROW)
    ahead = RunAhead(runner)
    begun = ahead.submit(plan)
    assert begun is not None
    assert ahead.submit(plan, begun) is not None
    runner.needs_row = True
    ahead.read(begun, {})
    assert ahead.submit(plan) is None
    assert ahead.submit(plan) is not None
    assert not any("logits" in wanted for wanted in runner.wanted)


def test_a_row_counts_where_its_sequence_goes_on_as_the_device_has_sampled() -> None:
    runner, plan = Submits(), plan_of(GREEDY)
    ahead = RunAhead(runner)
    begun = ahead.submit(plan)
    assert begun is not None
    assert ahead.counts(plan, 0, [1, 2, 3])  # nothing was read before: it is of a known id
    after = following(plan, 20)
    assert after is not None
    ahead.submit(after, begun)
    ahead.read(begun, {})
    assert ahead.counts(after, 0, [1, 2, 3, 5])
    assert not ahead.counts(after, 0, [1, 2, 3, 6])
    assert not ahead.counts(after, 0, [1, 2, 3])
    assert not ahead.counts(after, 0, [1, 2, 3, 5, 6])
    ahead.submit(plan)
    assert ahead.counts(plan, 0, [1, 2, 3, 6])


def test_what_follows_is_one_id_of_each_sequence() -> None:
    plan = plan_of(GREEDY, TOP_K, options=DEFAULT)
    after = following(plan, 5)
    assert after is not None
    assert [(rows.start, rows.count, rows.n_outputs) for rows in after.rows] == [(3, 1, 1), (3, 1, 1)]
    assert after.options is DEFAULT
    assert following(plan, 4) is None  # the next id fills the context
    assert following(plan_of(GREEDY, max_tokens=1), 20) is None
    assert following(plan_of(GREEDY, max_tokens=2), 20) is not None
    (rows,) = plan_of(GREEDY).rows
    for prompt in (Rows(rows.sequence, 1, 2, 1), Rows(rows.sequence, 1, 1, 0)):
        assert following(StepPlan((prompt,)), 20) is None
