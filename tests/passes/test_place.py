"""Placing and cutting: parts mean what the whole means and are as few as can be; rules are heeded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphml.backend import Backend
from graphml.compiler.partitions import join
from graphml.errors import UsageError
from graphml.ir.dtype import F32
from graphml.ir.graph import Graph
from graphml.ir.interpreter import interpret
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.ops.elementwise import relu, sqr
from graphml.ir.ops.index import set_rows
from graphml.ir.shape import Symbol
from graphml.ir.verify import verify
from graphml.loading import discovery
from graphml.passes.cut import COPY, Cut, constants, cut_graph, state_of
from graphml.passes.place import Placement, place
from graphml.passes.placement_rules import Rule, parse_rules
from tests.graphs import Recipe, random_graphs
from tests.looped import looped


def backend(name: str, refuses: Callable[[Node], str | None] = lambda node: None) -> Backend:
    return replace(discovery.backend("reference"), name=name, refuses=refuses, fused=frozenset())


def assigned(graph: Graph, names: list[str]) -> dict[Node, str]:
    """Backends for the nodes by turns; what touches one state stays together."""
    known, found = constants(graph), {}
    homes: dict[Node, str] = {}
    for i, node in enumerate(graph.nodes):
        if node.op.name in ("weight", "input") or node in known:
            continue
        states = [leaf for s in (node, *node.inputs) if (leaf := state_of(s)) is not None]
        found[node] = homes.setdefault(states[0], names[i % len(names)]) if states else names[i % len(names)]
        homes |= dict.fromkeys(states[1:], found[node])
    return found


@st.composite
def small_graphs(draw: st.DrawFn) -> tuple[Graph, dict[Node, str]]:
    """Up to nine nodes with everything wanted, some around a state, each on a backend that is drawn."""
    g = Builder(max_tokens=3, max_cells=8)
    x = g.input("x", F32, (g.n_tokens, 4))
    state, changed = g.state("s", F32, (g.n_cells, 4)), None
    values, touching = [x], {state}
    for _ in range(draw(st.integers(2, 9))):
        a, b = (values[draw(st.integers(0, len(values) - 1))] for _ in "ab")
        kind = draw(st.sampled_from(["relu", "add", "read", "write"]))
        if kind == "write" and changed is None:
            changed = g.call(set_rows, state, a, g.cells)
            touching.add(changed)
            continue
        if kind == "read":
            row = g.rows(state if changed is None else changed, g.top_k(a, 1))
            touching.add(row)
            made = g.flatten(row)
        else:
            made = g.call(relu, a) if kind == "relu" else g.add(a, b)
        values.append(made)
    values.append(g.call(relu, x))
    graph = g.finish(**{f"out_{i}": value for i, value in enumerate(values[1:])})
    home = draw(st.sampled_from("ab"))
    computed = [node for node in graph.nodes if node.op.name not in ("input", "weight")]
    return graph, {node: home if node in touching else draw(st.sampled_from("ab")) for node in computed}


@given(small_graphs())
def test_no_order_has_fewer_parts(drawn: tuple[Graph, dict[Node, str]]) -> None:
    graph, backend_of = drawn
    cut = cut_graph(graph, backend_of)
    assert len(cut.parts) == fewest_parts(graph, backend_of)
    generator = np.random.default_rng(0)
    arrays: dict[str, Array] = {
        "x": generator.standard_normal((3, 4), np.float32),
        "s": generator.standard_normal((8, 4), np.float32),
        "cells": np.array([5, 0, 2], np.int32),
    }
    wanted, got = interpret(graph, copied(arrays)), run(cut, copied(arrays))
    for name, value in wanted.items():
        np.testing.assert_array_equal(got[name], value)
    whole, _ = join([part.graph for part in cut.parts], list(graph.outputs))
    verify(whole)
    for name, value in interpret(whole, copied(arrays)).items():
        np.testing.assert_array_equal(value, wanted[name])


def test_a_state_is_read_before_it_is_changed_whatever_the_order() -> None:
    g = Builder(max_tokens=2, max_cells=4)
    x, state = g.input("x", F32, (g.n_tokens, 4)), g.state("s", F32, (g.n_cells, 4))
    wait = g.top_k(g.call(relu, x), 1)
    old = g.rows(state, wait)
    graph = g.finish(old=old, new=g.call(set_rows, state, x, g.cells))
    placed_nodes = [node for node in graph.nodes if node.op.name != "input"]
    cut = cut_graph(graph, {node: "b" if node is wait else "a" for node in placed_nodes})
    arrays: dict[str, Array] = {
        "x": np.eye(2, 4, dtype=np.float32),
        "s": np.full((4, 4), 7, np.float32),
        "cells": np.array([0, 1], np.int32),
    }
    assert [part.backend for part in cut.parts] == ["a", "b", "a"]
    assert (run(cut, arrays)["old"] == 7).all()
    assert arrays["s"][0, 0] == 1


def run(cut: Cut, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of the parts, run in order in NumPy."""
    values, outputs = dict(arrays), {}
    for part in cut.parts:
        for name, value in interpret(part.graph, values).items():
            (values if name.startswith(COPY) else outputs)[name.removeprefix(COPY)] = value
    return outputs


def copied(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name: array.copy() for name, array in arrays.items()}


def fewest_parts(graph: Graph, backend_of: Mapping[Node, str]) -> int:
    """Over every order in which the nodes can run."""
    computed = [node for node in graph.nodes if node in backend_of and node.op.name != "state"]
    index = {node: i for i, node in enumerate(computed)}
    needs = [sum(1 << index[s] for s in set(node.inputs) if s in index) for node in computed]
    for i, writer in enumerate(computed):
        if writer.op.writes is not None:
            old = writer.inputs[writer.op.writes]
            needs[i] |= sum(1 << j for j, node in enumerate(computed[:i]) if old in node.inputs)
    best = {(0, ""): 0}
    for _ in computed:
        grown: dict[tuple[int, str], int] = {}
        for (done, last), parts in best.items():
            for i, node in enumerate(computed):
                if not done >> i & 1 and needs[i] & ~done == 0:
                    key = done | 1 << i, backend_of[node]
                    cost = parts + (backend_of[node] != last)
                    grown[key] = min(cost, grown.get(key, cost))
        best = grown
    return min(best.values())


@np.errstate(invalid="ignore")  # a flag that small products of NumPy have raised at random
@given(random_graphs(), st.sampled_from([["a", "b"], ["a", "b", "c"], ["b", "a", "a"]]))
def test_parts_mean_what_the_whole_means(recipe: Recipe, names: list[str]) -> None:
    graph = recipe.graph
    if set(graph.nodes) <= constants(graph) | set(graph.leaves("weight").values()):
        return
    backend_of = assigned(graph, names)
    cut = cut_graph(graph, backend_of)
    arrays = recipe.arrays()
    after, states = copied(arrays), copied(arrays)
    wanted, got = interpret(graph, after), run(cut, states)
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(got[name], value)
    for name in graph.leaves("state"):
        np.testing.assert_array_equal(states[name], after[name])
    for part in cut.parts:
        verify(part.graph)
        assert {backend_of[n] for n in graph.nodes if n in backend_of and n in part.graph.nodes} <= {
            part.backend
        }
    whole, _ = join([part.graph for part in cut.parts], list(graph.outputs))
    verify(whole)
    for name, value in interpret(whole, copied(arrays)).items():
        np.testing.assert_array_equal(value, wanted[name])


def chain(*ops: str) -> Graph:
    """A chain of named nodes of one operand."""
    g = Builder()
    x = g.input("x", F32, (Symbol("T", 8), 16))
    kinds = {"relu": lambda x: g.call(relu, x), "sqr": lambda x: g.call(sqr, x), "silu": g.silu}
    for op in ops:
        x = kinds[op](x)
    return g.finish(y=x)


def placed(graph: Graph, backends: list[Backend], rules: str = "") -> Placement:
    return place(graph, backends, parse_rules(rules, [one.name for one in backends]))


def refusing(name: str, *ops: str) -> Backend:
    return backend(name, lambda node: f"no {node.op.name}" if node.op.name in ops else None)


def test_light_nodes_between_two_parts_follow_them() -> None:
    graph = chain("relu", "sqr", "relu", "sqr", "relu")
    found = placed(graph, [refusing("a", "sqr"), backend("b")])
    assert [part.backend for part in found.cut.parts] == ["b"]
    assert found.places["sqr"].reason == "a refuses: no sqr"
    assert found.places["relu_1"].reason == "placed with its neighbours to avoid a cut"
    assert [one.name for one in found.fallbacks] == ["sqr", "sqr_1"]


def test_what_the_neighbour_refuses_does_not_follow_it() -> None:
    graph = chain("silu", "sqr", "silu", "relu", "silu")
    found = placed(graph, [refusing("a", "sqr", "relu"), refusing("b", "silu")])
    assert [part.backend for part in found.cut.parts] == ["a", "b", "a", "b", "a"]
    assert found.places["silu_1"].reason == "preferred"


def test_a_matrix_does_not_move_for_the_sake_of_a_cut() -> None:
    g = Builder()
    x = g.input("x", F32, (Symbol("T", 8), 16))
    y = g.call(sqr, g.mul_mat(g.weight("w", F32, (16, 16)), g.call(sqr, x)))
    found = placed(g.finish(y=y), [refusing("a", "sqr"), backend("b")])
    assert [part.backend for part in found.cut.parts] == ["b", "a", "b"]
    assert [(c.name, c.token_bytes, c.bound_bytes) for c in found.cut.copies] == [
        ("sqr", 64, 512),
        ("mul_mat", 64, 512),
    ]


def test_a_state_takes_all_that_touch_it_along() -> None:
    g = Builder()
    state = g.state("s", F32, (Symbol("C", 8), 16))
    x, cells = g.input("x", F32, (g.n_tokens, 16)), g.cells
    changed = g.call(set_rows, state, g.call(relu, x), cells)
    read = g.call(sqr, g.rows(changed, cells))
    graph = g.finish(y=read)
    found = placed(graph, [refusing("a", "get_rows"), backend("b")])
    assert {found.places[name].backend for name in ("s", "set_rows", "get_rows")} == {"b"}
    assert found.places["set_rows"].reason == "a refuses get_rows: no get_rows"
    assert found.states() == {"s": "b"}
    moved = placed(graph, [backend("a"), backend("b")], "b:s")
    assert moved.places["set_rows"].reason == "rule b:s"
    assert moved.places["get_rows"].backend == "b"
    assert moved.places["get_rows"].reason == "placed with s (rule b:s)"


def test_constants_are_in_every_part_and_no_fallback() -> None:
    g = Builder()
    w = g.call(sqr, g.weight("w", F32, (16, 16)))
    x = g.input("x", F32, (Symbol("T", 8), 16))
    y = g.mul_mat(w, g.call(relu, g.mul_mat(w, x)))
    found = placed(g.finish(y=y), [refusing("a", "sqr"), backend("b")], "b:relu")
    assert not found.fallbacks
    assert "sqr" not in found.places
    assert [sum(n.op is sqr for n in part.graph.nodes) for part in found.cut.parts] == [1, 0, 1]


def test_of_two_rules_the_later_counts() -> None:
    graph = chain("relu", "sqr", "silu")
    found = placed(graph, [backend("a"), backend("b")], "b:*, a:sqr")
    assert [found.places[name].backend for name in ("relu", "sqr", "silu")] == ["b", "a", "b"]
    assert found.places["sqr"].reason == "rule a:sqr"


@looped(
    ("rule", "layers"),
    [("layers.1", [1]), ("layers.0-2", [0, 1, 2]), ("layers.2-2", [2]), ("layers.*", [0, 1, 2, 3])],
)
def test_rules_by_layer(rule: str, layers: list[int]) -> None:
    g = Builder()
    x = g.input("x", F32, (4, 16))
    for layer in range(4):
        with g.scope(f"layers.{layer}"):
            x = g.mul_mat(g.weight(f"w{layer}", F32, (16, 16)), x, name="x")
    found = place(g.finish(y=x), [backend("a"), backend("b")], [Rule("b", rule)])
    assert [i for i in range(4) if found.places[f"layers.{i}.x"].backend == "b"] == layers


@looped("text", ["a", "a:", ":x", "c:relu", "a:relu,b"])
def test_rules_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UsageError, match="place: "):
        parse_rules(text, ["a", "b"])
