"""The plan after one that is not computed yet, for a device that is given a step before the last one is read.

A part of the scheduler in a file of its own. Knows sequences and blocks; nothing of devices.
"""

from __future__ import annotations

from collections.abc import Sequence as Values

from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.loop.fair_order import FairOrder
from graphml.runtime.plans.step_plan import Rows, StepPlan


def following_plan(
    plan: StepPlan, running: Values[Sequence], pool: BlockPool, n_ctx: int, order: FairOrder
) -> StepPlan | None:
    """The next step of the same sequences, each by one id; None where one is sure to end, or has no block."""
    if len(plan.rows) != len(running):
        return None
    for rows in plan.rows:
        sequence, most = rows.sequence, rows.sequence.request.max_tokens
        if rows.count != 1 or not rows.n_outputs or len(sequence.ids) + 1 >= n_ctx:
            return None
        if most is not None and sequence.n_generated + 1 >= most:
            return None
    needed = [
        rows.sequence.blocks_needed(rows.start + 2 - rows.sequence.n_computed, pool.block_size)
        for rows in plan.rows
    ]
    blocks = pool.allocate(sum(needed))
    if blocks is None:
        return None
    for rows, count in zip(plan.rows, needed, strict=True):
        rows.sequence.blocks += blocks[:count]
        del blocks[:count]
        order.serve(rows.sequence.request, 1)
    return StepPlan(tuple(Rows(rows.sequence, rows.start + 1, 1, 1) for rows in plan.rows))
