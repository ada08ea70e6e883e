"""The memory plan: values alive together never overlap, and the arena is about as small as can be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from graphml_reference.device import ReferenceDevice
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from graphml.backend import Plan
from graphml.compiler.compile import prepare
from graphml.errors import GraphError
from graphml.ir.dtype import F32, dtype
from graphml.ir.graph import Graph
from graphml.ir.interpreter import evaluate, interpret, together
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.shape import bounds
from graphml.loading import discovery
from graphml.passes.plan import ALIGNMENT, plan_memory
from graphml.passes.plan_check import check_plan
from tests.graphs import QUANTIZING, Recipe, random_graphs


class Device(ReferenceDevice):
    """Sizes as NumPy holds values, and scratch for some of the nodes."""

    def workspace(self, node: Node) -> int:
        return 100 if node.op.family == "norm" else 0


def owner(node: Node) -> Node:
    """The node whose storage a value lies in, through views."""
    return owner(node.inputs[0]) if node.op.view else node


def lives_in_arena(node: Node) -> bool:
    return owner(node).op.name not in ("weight", "state") and not owner(node).op.is_write


def needed_until(graph: Graph) -> dict[Node, int]:
    """The last step at which each value is read, worked out anew; outputs and inputs to the end."""
    end = len(graph.nodes)
    last: dict[Node, int] = {}
    for i, node in enumerate(graph.nodes):
        last[owner(node)] = max(last.get(owner(node), 0), i)
        for source in node.inputs:
            last[owner(source)] = i
    for node in (*graph.outputs.values(), *graph.leaves("input").values()):
        last[owner(node)] = end
    return last


def may_take_over(node: Node, source: Node, last: Mapping[Node, int], step: int) -> bool:
    """Whether `node` may be written where its operand `source` lies, which it must be the last to read."""
    operands = [i for i, one in enumerate(node.inputs) if owner(one) is owner(source)]
    return len(operands) == 1 and operands[0] in node.op.inplace and last[owner(source)] == step


def chains(graph: Graph, plan: Plan, last: Mapping[Node, int]) -> dict[Node, Node]:
    """For every value the first of those that followed each other in place up to it."""
    chain: dict[Node, Node] = {}
    for i, node in enumerate(graph.nodes):
        before = [
            chain[owner(source)]
            for source in node.inputs
            if may_take_over(node, source, last, i)
            and plan.offsets.get(node) == plan.offsets.get(owner(source))
        ]
        chain[node] = before[0] if before else node
    return chain


def check(graph: Graph, plan: Plan, device: Device, slack: int = 0) -> None:
    """Every pair of values with overlapping lives lies apart, but for a value taken over in place."""
    last, place = needed_until(graph), {node: i for i, node in enumerate(graph.nodes)}
    chain = chains(graph, plan, last)
    spans = []
    for node in graph.nodes:
        assert (node in plan.offsets) == lives_in_arena(node), node
        if node.op.view and node in plan.offsets:
            assert plan.offsets[node] == plan.offsets[owner(node)]
        elif node in plan.offsets:
            first = 0 if node.op.name == "input" else place[node]
            spans.append((plan.offsets[node], device.storage(node), first, last[node], node))
        assert (node in plan.workspaces) == (
            lives_in_arena(node) and not node.op.view and device.workspace(node) > 0
        )
        if node in plan.workspaces:
            spans.append((plan.workspaces[node], device.workspace(node), place[node], place[node], None))
    for a, (offset, size, first, end, node) in enumerate(spans):
        assert offset % ALIGNMENT == 0
        assert offset + size <= plan.peak
        for other_offset, other_size, other_first, other_end, other in spans[:a]:
            if other_offset >= offset + size or offset >= other_offset + other_size:
                continue
            if node and other and any(owner(source) is other for source in node.inputs):
                source = next(source for source in node.inputs if owner(source) is other)
                if may_take_over(node, source, last, first):
                    assert device.storage(node) <= other_size + ALIGNMENT
                    continue
            # Values that follow each other in place need no slack: each waits for the one before it anyway.
            apart = 0 if node and other and chain[node] is chain[other] else slack
            assert other_end + apart < first or end + apart < other_first, (node, other)


def least_arena(graph: Graph, device: Device) -> int:
    """Bytes of the largest set of values alive at one step, those that take over counted once."""
    last, place = needed_until(graph), {node: i for i, node in enumerate(graph.nodes)}
    best = 0
    for step, now in enumerate(graph.nodes):
        alive = 0
        for node in graph.nodes:
            first = 0 if node.op.name == "input" else place[node]
            if lives_in_arena(node) and not node.op.view and first <= step <= last[node]:
                taken = node is not now and last[node] == step and any(
                    owner(source) is node and may_take_over(now, source, last, step) for source in now.inputs
                )  # fmt: skip
                alive += 0 if taken else -(-device.storage(node) // ALIGNMENT) * ALIGNMENT
        best = max(best, alive)
    return best


def run_in_arena(graph: Graph, plan: Plan, leaves: Mapping[str, Array]) -> dict[str, Array]:
    """Interpret the graph with every value kept in the arena, where the plan says, and nowhere else.

    Several results of a node follow each other there.
    """
    arena = np.full(plan.peak, 0xA5, np.uint8)
    elsewhere: dict[Node, Array] = {}
    held: dict[Node, list[tuple[int, tuple[int, ...], np.dtype[np.generic]]]] = {}

    class Values(dict[Node, NDArray[np.generic]]):
        def __missing__(self, node: Node) -> Array:
            if node not in plan.offsets:
                return elsewhere[node]
            if node.op.view:
                return evaluate(node, self)
            found = [
                arena[at : at + int(np.prod(shape)) * kind.itemsize].view(kind).reshape(shape).copy()
                for at, shape, kind in held[node]
            ]
            return together(found) if node.type.parts else found[0]

    def keep(node: Node, value: Array) -> None:
        if node not in plan.offsets:
            elsewhere[node] = value
            return
        at, held[node] = plan.offsets[node], []
        for data in map(np.ascontiguousarray, value if node.type.parts else [value]):
            held[node].append((at, data.shape, data.dtype))
            arena[at : at + data.nbytes] = data.reshape(-1).view(np.uint8)
            at += data.nbytes
        if node in plan.workspaces:
            arena[plan.workspaces[node] : plan.workspaces[node] + 100] = 0x5A

    given = [node for node in graph.nodes if node.op.family == "leaf"]
    for node in (*given, *(node for node in graph.nodes if node.op.family != "leaf")):
        if not node.op.view or node not in plan.offsets:
            keep(node, leaves[node.name] if node in given else evaluate(node, Values()))
    return {name: Values()[node] for name, node in graph.outputs.items()}


@settings(deadline=None)
@given(random_graphs(), st.integers(0, 3))
def test_nothing_alive_overlaps(recipe: Recipe, slack: int) -> None:
    plan = plan_memory(recipe.graph, Device(), slack)
    check(recipe.graph, plan, Device(), slack)
    assert plan.lower_bound <= plan.peak


@settings(deadline=None)
@given(random_graphs(without=QUANTIZING))
def test_running_inside_the_arena_gives_the_same(recipe: Recipe) -> None:
    plan = plan_memory(recipe.graph, Device())
    with np.errstate(all="ignore"):
        wanted = interpret(recipe.graph, recipe.arrays())
        got = run_in_arena(recipe.graph, plan, recipe.arrays())
    for name, value in wanted.items():
        np.testing.assert_array_equal(got[name], value)


def test_the_checker_notices_an_overlap() -> None:
    g = Builder()
    x = g.input("x", F32, (64,))
    graph = g.finish(y=g.add(g.tanh(x), g.silu(x)))
    plan = plan_memory(graph, Device())
    check(graph, plan, Device())
    tanh, silu = graph.node("tanh"), graph.node("silu")
    broken = Plan({**plan.offsets, silu: plan.offsets[tanh]}, {}, plan.peak, plan.lower_bound)
    with pytest.raises(AssertionError):
        check(graph, broken, Device())
    leaves = {"x": np.linspace(-1, 1, 64).astype(np.float32)}
    assert not np.array_equal(run_in_arena(graph, broken, leaves)["y"], interpret(graph, leaves)["y"])


def test_a_chain_runs_in_place_and_inputs_are_left_alone() -> None:
    g = Builder()
    x = g.input("x", F32, (16,))
    first = g.tanh(x)
    last = g.silu(g.sigmoid(first))
    plan = plan_memory(g.finish(y=last), ReferenceDevice())
    assert plan.offsets[first] == plan.offsets[last] != plan.offsets[x]
    assert plan.peak == 2 * ALIGNMENT


def test_in_place_waits_until_nobody_reads_it_later() -> None:
    g = Builder()
    x = g.input("x", F32, (16,))
    a = g.tanh(x)
    b = g.silu(a)
    c = g.add(b, a)
    plan = plan_memory(g.finish(y=c), ReferenceDevice())
    assert plan.offsets[b] != plan.offsets[a]
    assert plan.offsets[c] == plan.offsets[b]


def test_nothing_is_taken_over_that_another_operand_sees() -> None:
    g = Builder()
    x = g.input("x", F32, (4, 4))
    a = g.tanh(x)
    both = g.mul(a, a)
    seen = g.silu(both)
    b = g.mul(seen, g.reshape(seen, 4))
    plan = plan_memory(g.finish(y=b), ReferenceDevice())
    assert plan.offsets[both] != plan.offsets[a]
    assert plan.offsets[b] != plan.offsets[seen]


def test_outputs_and_what_they_view_survive() -> None:
    g = Builder()
    x = g.input("x", F32, (8, 8))
    a = g.tanh(x)
    seen = g.reshape(a, 4, 2)
    b = g.silu(a)
    c = g.silu(b)
    plan = plan_memory(g.finish(seen=seen, c=c), ReferenceDevice())
    assert plan.offsets[seen] == plan.offsets[a]
    assert plan.offsets[b] != plan.offsets[a]


def test_states_have_no_place_in_the_arena() -> None:
    g = Builder(max_tokens=4)
    x = g.input("x", F32, (g.n_tokens, 2, 8))
    graph = g.finish(y=g.attend(x, x, x, layer=0, scale=1.0))
    plan = plan_memory(graph, ReferenceDevice())
    assert not {node.name for node in plan.offsets} & {
        "cache.0.k",
        "cache.0.v",
        "cache_write",
        "cache_write_1",
    }


def llama(max_tokens: int, max_outputs: int, n_layer: int = 3) -> Graph:
    """A step of a llama of SmolLM2's proportions, built by hand so that no file is needed."""
    g = Builder(max_tokens, max_outputs)
    form, width, hidden, n_vocab = dtype("q4_1"), 576, 1536, 49152

    def weight(name: str, rows: int, columns: int) -> Node:
        return g.weight(name, form, (rows, columns))

    table = g.rope_table(64)
    x = g.embed(weight("token_embd", n_vocab, width), g.tokens)
    for i in range(n_layer):
        with g.scope(f"layers.{i}"):
            h = g.rms_norm(x, g.weight(f"{i}.norm", F32, (width,)), 1e-5)
            q, k, v = (
                g.heads(g.mul_mat(weight(f"{i}.{n}", 64 * m, width), h), m)
                for n, m in (("q", 9), ("k", 3), ("v", 3))
            )
            h = g.attend(g.rope(q, table, "norm"), g.rope(k, table, "norm"), v, i, 0.125)
            if i == n_layer - 1:
                x, h = g.rows(x, g.output_rows), g.rows(h, g.output_rows)
            x = g.add(x, g.mul_mat(weight(f"{i}.o", width, width), h))
            h = g.rms_norm(x, g.weight(f"{i}.ffn_norm", F32, (width,)), 1e-5)
            gate, up = (g.mul_mat(weight(f"{i}.{n}", hidden, width), h) for n in ("gate", "up"))
            x = g.add(x, g.mul_mat(weight(f"{i}.down", width, hidden), g.mul(g.silu(gate), up)))
    x = g.rms_norm(x, g.weight("norm", F32, (width,)), 1e-5)
    return g.finish(logits=g.mul_mat(weight("output", n_vocab, width), x))


@pytest.mark.parametrize("backend", discovery.backend_names())
@pytest.mark.parametrize(
    ("tokens", "outputs"), [(1, 1), (512, 1), (128, 128)], ids=["decode", "prefill", "all"]
)
def test_the_arena_of_llama_is_at_most_a_tenth_above_the_least(
    backend: str, tokens: int, outputs: int
) -> None:
    chosen = discovery.backend(backend)
    device = chosen.open(1)
    try:
        prepared = prepare(llama(tokens, outputs), chosen, device)
        graph, plan = prepared.graph, prepared.plan
        assert plan.peak <= 1.10 * plan.lower_bound
        if backend == "reference":
            assert plan.peak <= 1.10 * least_arena(graph, ReferenceDevice())
        assert bounds(graph.outputs["logits"].shape)[0] == outputs
    finally:
        device.close()


@settings(deadline=None)
@given(random_graphs())
def test_the_lower_bound_is_one(recipe: Recipe) -> None:
    device = ReferenceDevice()
    assert plan_memory(recipe.graph, device).lower_bound >= least_arena(recipe.graph, device)


def test_a_plan_that_frees_a_value_early_is_refused_by_name() -> None:
    g = Builder(max_tokens=4)
    x = g.input("x", F32, (g.n_tokens, 16))
    kept = g.silu(x, name="kept")
    y = g.add(g.tanh(g.sqr(kept, name="between"), name="later"), kept)
    graph = g.finish(y=y)
    plan = plan_memory(graph, Device())
    nodes = {node.name: node for node in graph.nodes}
    early = {**plan.offsets, nodes["later"]: plan.offsets[kept]}
    with pytest.raises(GraphError, match=r"%kept has bytes \d+ to \d+ and is read still where %later gets"):
        check_plan(graph, replace(plan, offsets=early), Device())
    scratch = replace(plan, workspaces={nodes["later"]: plan.offsets[kept]})
    with pytest.raises(GraphError, match="%kept has bytes"):
        check_plan(graph, scratch, Norms(nodes["later"]))


class Norms(Device):
    """A device with scratch for one node."""

    def __init__(self, node: Node) -> None:
        super().__init__()
        self._node = node

    def workspace(self, node: Node) -> int:
        return 64 if node is self._node else 0


@settings(deadline=None, max_examples=100)
@given(random_graphs())
def test_every_plan_passes_the_walk_that_shares_nothing_with_it(recipe: Recipe) -> None:
    for slack in (0, 3):
        check_plan(recipe.graph, plan_memory(recipe.graph, Device(), slack), Device())
