"""Which kernels a node calls, as `graphml explain` says it: the loop of products that is chosen, and why."""

from __future__ import annotations

import re

import pytest
from graphml_cpu import BACKEND, packed, product_costs
from graphml_cpu.called_kernels import called_kernels
from graphml_cpu.device import SUPPORT
from graphml_cpu.lowering import table
from graphml_cpu.lowering.step import Scratch
from graphml_cpu.tuning import UNTUNED, CpuTuning

from graphml.compiler.compile import prepare
from graphml.inspect.dumps.explain import explain, text
from graphml.inspect.dumps.without_weights import describe_model
from graphml.ir.dtype import F32, dtype
from graphml.ir.graph import Graph
from graphml.ir.language import Builder
from graphml.ir.node import Node
from tests.inspect import samples


def calls(tokens: int, name: str) -> list[str]:
    found: list[str] = explain(describe_model(samples.stories("cpu"), tokens), name)["final"]["kernels"]
    return found


def last_graph(tokens: int, sequences: int = 1) -> Graph:
    """The stories model's, for steps of so many tokens."""
    executor = samples.stories("cpu")
    graph = executor.build(tokens, sequences, sequences)
    return prepare(graph, executor.backend, executor.device, executor.options).graph


def first_of(op: str, graph: Graph) -> Node:
    return next(node for node in graph.nodes if node.op.name == op)


def down(tokens: int) -> Node:
    """A product with weights of 64 x 172."""
    linears = (node for node in last_graph(tokens).nodes if node.op.name == "linear")
    return next(node for node in linears if node.inputs[0].shape == (64, 172))


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


def test_the_weights_of_all_products_of_a_call_count() -> None:
    graph = last_graph(8)
    for op, shape in (("linears", "128 x 64"), ("mul_mat_glu", "344 x 64")):
        (line,) = called_kernels(first_of(op, graph), SUPPORT, 1, UNTUNED, one_order=False)
        assert f"8 rows of {shape} take" in line


def test_what_was_tuned_is_said() -> None:
    tuned = CpuTuning({("mul_mat-f32", 64, 172, 1): {"few_rows": 4, "tokens": 4}})
    (line,) = called_kernels(down(8), SUPPORT, 1, tuned, one_order=False)
    wanted = "mul_mat-f32-4-0: 8 rows by panels; up to 4 by rows, more by panels (graphml tune measured it)"
    assert line.startswith(wanted)


def test_floats_in_one_order_have_one_loop() -> None:
    (line,) = called_kernels(down(128), SUPPORT, 1, UNTUNED, one_order=True)
    assert line == "mul_mat_vec-f32: 128 rows by rows, the only loop in one order"


def test_several_rows_of_one_token_are_no_single_row() -> None:
    """Their loop needs scratch memory that a single row does without."""
    g = Builder()
    product = g.mul_mat(g.weight("w", dtype("q4_0"), (64, 256)), g.input("x", F32, (1, 5, 256)))
    device = BACKEND.open(1)
    node = first_of("linear", prepare(g.finish(result=product), BACKEND, device).graph)
    device.close()
    (step,) = table()["linear"].steps(node, 1)
    assert step.arguments["scratch"] == Scratch(packed.scratch_bytes("q4_0", 256))
    (line,) = called_kernels(node, SUPPORT, 1, UNTUNED, one_order=False)
    assert line.startswith("mul_mat-q4_0: 5 rows by rows")


def test_every_kernel_call_of_a_node_has_a_line() -> None:
    document = describe_model(samples.stories("cpu"), 8)
    attention = [node for node in document["passes"][-1]["nodes"] if node["op"] == "attention"]
    assert [line.split("-")[0] for line in attention[0]["kernels"]] == ["attention_prefill"]
    assert "calls " in text(explain(document, attention[0]["name"]))


@pytest.mark.parametrize(
    ("tokens", "sequences", "wanted"),
    [(8, 1, ["prefill"]), (2, 2, ["partial", "combine"]), (8, 2, ["partial", "prefill", "combine"])],
)
def test_rows_beside_chunks_of_other_sequences_take_the_decoding_form(
    tokens: int, sequences: int, wanted: list[str]
) -> None:
    node = first_of("attention", last_graph(tokens, sequences))
    lines = called_kernels(node, SUPPORT, 1, UNTUNED, one_order=False)
    assert [line.split("-")[0] for line in lines] == [f"attention_{one}" for one in wanted]
    alone = {step.arguments["alone"] for step in table()["attention"].steps(node, 1)}
    assert alone == {0 if len(wanted) < 3 else sequences}
