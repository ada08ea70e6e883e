"""Which operands a result takes over in place."""

from __future__ import annotations

from dataclasses import replace

import pytest
from graphml_reference.device import ReferenceDevice

from graphml.errors import GraphError
from graphml.ir.dtype import F32
from graphml.ir.language import Builder
from graphml.passes.plan import aligned, plan_memory
from graphml.passes.plan_check import check_plan


@pytest.mark.parametrize("updates", [1, 2])
def test_a_result_takes_over_an_operand_of_its_own_type_alone(updates: int) -> None:
    """With two updates in a token the values are larger than the result, but both fill one cache line."""
    g = Builder(max_tokens=1)
    q, decay = g.input("q", F32, (g.n_tokens, 1, 4)), g.input("decay", F32, (g.n_tokens, 1, 1))
    more = () if updates == 1 else (updates,)
    k = g.input("k", F32, (g.n_tokens, *more, 1, 4))
    v, beta = g.silu(k), g.sum_rows(k)
    y = g.gated_delta_net(q, k, v, decay, beta, layer=0, scale=1.0)
    device, graph = ReferenceDevice(), g.finish(y=g.neg(y))
    plan = plan_memory(graph, device)
    assert aligned(device.storage(v)) == aligned(device.storage(y))
    assert (plan.offsets[v] == plan.offsets[y]) == (updates == 1)
    check_plan(graph, plan, device)
    if updates > 1:
        wrong = replace(plan, offsets={**plan.offsets, y: plan.offsets[v]})
        with pytest.raises(GraphError):
            check_plan(graph, wrong, device)
