"""Which kernels a node calls, as `graphml explain` says it: the loop of products that is chosen, and why."""

from __future__ import annotations

import re

import pytest
from graphml_cpu import packed, product_costs

from graphml.inspect.explain import explain, text
from graphml.inspect.without_weights import describe_model
from tests.inspect import samples


def calls(tokens: int, name: str) -> list[str]:
    found: list[str] = explain(describe_model(samples.stories("cpu"), tokens), name)["final"]["kernels"]
    return found


def test_one_row_has_one_loop() -> None:
    (line,) = calls(1, "layers.3.down")
    assert line == "mul_mat_vec-f32: by rows, the only loop for one row"


@pytest.mark.parametrize("tokens", [2, 128])
def test_the_loop_for_so_many_rows_is_said_with_what_both_cost(tokens: int) -> None:
    (line,) = calls(tokens, "layers.3.down")
    few = packed.few_rows("f32", 64)
    chosen = "by rows" if tokens <= few else "by panels"
    assert line.startswith(f"mul_mat-f32: {tokens} rows {chosen}; up to {few} by rows, more by panels")
    costs = product_costs.costs("f32", True)
    n, k = map(int, re.findall(r"rows of (\d+) x (\d+) take", line)[0])
    wanted = [round(cost.of(n, tokens) * k / 1e6) for cost in (costs.by_rows, costs.by_panels)]
    assert [int(us) for us in re.findall(r"(\d+) us by", line)] == wanted
    assert "by the model of costs" in line


def test_every_kernel_call_of_a_node_has_a_line() -> None:
    document = describe_model(samples.stories("cpu"), 8)
    attention = [node for node in document["passes"][-1]["nodes"] if node["op"] == "attention"]
    assert [line.split("-")[0] for line in attention[0]["kernels"]] == ["attention_prefill"]
    assert "calls " in text(explain(document, attention[0]["name"]))
