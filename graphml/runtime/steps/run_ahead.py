"""Run-ahead decoding: submits step t + 1 before the host has read the outputs of step t.

The tokens of step t + 1 are those that the device itself samples at the end of step t. The host reads the
outputs of t and samples from them as without run-ahead; of t + 1 the rows count whose tokens are the same.
Engines and sessions do it alike. Knows plans and samplers; nothing of blocks, or why a sequence ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Values
from typing import Protocol

from graphml.compiler.top_k_outputs import OF_ROW, SAMPLED, TOP_K, TOP_K_IDS, TOP_K_LOGITS
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.plans.step_plan import Rows, StepPlan
from graphml.runtime.steps.computed_plan import BegunPlan, Computed
from graphml.sampling import Enough, SamplingParams, device_samples_row, device_settings, top_k_enough

_ROWS_AFTER_EDGE = 8
"""So many steps of one sequence give its row along after a number that was too near to an edge to sample by:
the flatter a distribution is, the more edges it has, and the next is like it."""


class SubmitsPlans(Protocol):
    """A `Runner`, or a `Room` of sessions."""

    def submit(self, plan: StepPlan, after: BegunPlan | None, wanted: Values[str]) -> BegunPlan | None:
        """See `Runner.submit`."""

    def finish(self, begun: BegunPlan, of: Mapping[int, Sequence]) -> Computed:
        """See `Runner.finish`."""


class RunAhead:
    """The steps of an engine, or of one generation of a session."""

    def __init__(self, runner: SubmitsPlans) -> None:
        self._runner: SubmitsPlans | None = runner
        self._rows_along, self._needs_row = 0, False
        self._fed: tuple[int, ...] | None = None

    def close(self) -> None:
        """Let the runner go; nothing is submitted any more."""
        self._runner = None

    def submit(self, plan: StepPlan, after: BegunPlan | None = None) -> BegunPlan | None:
        """Submit a plan; None where it cannot be, or a device gains nothing by it: then it is to be run.

        after: a submitted plan of as many rows, the tokens of which this one computes, whatever they are.
        """
        wanted, refused = _outputs(plan), self._needs_row and len(plan.rows) > 1
        if after is None:
            self._fed, self._needs_row = None, False
        if wanted is None or (after is None and refused):
            return None
        if self._rows_along and len(plan.rows) == 1:
            wanted |= {"logits": None}
        assert self._runner is not None
        return self._runner.submit(plan, after, tuple(wanted))

    def read(self, begun: BegunPlan, of: Mapping[int, Sequence]) -> Computed:
        """Wait for a submitted plan; of: the output rows that count, and whose they are.

        A token is None that cannot be sampled without its whole row.
        """
        assert self._runner is not None
        computed = self._runner.finish(begun, of)
        self._rows_along, self._fed = max(self._rows_along - 1, 0), computed.device_tokens
        if computed.needs_row:
            self._rows_along, self._needs_row = _ROWS_AFTER_EDGE, True
        return computed

    def counts(self, plan: StepPlan, row: int, ids: Values[int]) -> bool:
        """Whether a row of the submitted plan is of the last of `ids`, which its sequence holds now."""
        return self._fed is None or ids[plan.rows[row].start :] == [self._fed[row]]


def following(plan: StepPlan, n_ctx: int) -> StepPlan | None:
    """The step of the same sequences after a plan that was not read, each by one id.

    None where one of them reads its prompt still, or is sure to end: by its request or a full context.
    """
    for rows in plan.rows:
        most = rows.sequence.request.max_tokens
        if rows.count != 1 or not rows.n_outputs or rows.start + 2 >= n_ctx:
            return None
        if most is not None and rows.sequence.n_generated + 1 >= most:
            return None
    return StepPlan(
        tuple([Rows(rows.sequence, rows.start + 1, 1, 1) for rows in plan.rows]), options=plan.options
    )


def _outputs(plan: StepPlan) -> dict[str, None] | None:
    """What is read of a plan's step, to check what the device samples; None where more decides that.

    Captured values are read at every step, patches are of its rows. Whole rows are read of one alone.
    """
    probed = plan.options is not None and (plan.options.keep or plan.options.patch)
    if plan.sources or plan.texts or probed:
        return None
    wanted: dict[str, None] = {}
    for rows in plan.rows:
        sequence = rows.sequence
        of_params = _outputs_of(sequence.request.params)
        if not of_params or rows.n_scored or sequence.guidance is not None or sequence.drafts is not None:
            return None
        wanted |= dict.fromkeys(of_params)
    return None if "logits" in wanted and len(plan.rows) > 1 else wanted


def _outputs_of(params: SamplingParams) -> tuple[str, ...]:
    """The same for a sequence; empty where the device does not sample by these parameters.

    With the logits where the top k may not be enough: else the step would run once more.
    """
    if device_settings(params, 0.0, TOP_K) is None:
        return ()
    if params.greedy or device_samples_row(params):
        return SAMPLED, OF_ROW
    top_k = SAMPLED, OF_ROW, TOP_K_IDS, TOP_K_LOGITS
    return top_k if top_k_enough(params, TOP_K) is Enough.ALWAYS else (*top_k, "logits")
