"""Every fusion, found by itself: it rewrites its terms, keeps the meaning and where things came from."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from graphml.ir.dtype import F32, dtype
from graphml.ir.fused import as_outputs
from graphml.ir.graph import Graph
from graphml.ir.interpreter import interpret
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Op, Sample, Several
from graphml.ir.ops.layout import part
from graphml.ir.text import write
from graphml.ir.verify import verify
from graphml.passes.expand import expand
from graphml.passes.fusion import fuse
from graphml.passes.fusion_log import AppliedFusion, Refused
from tests.graphs import QUANTIZING, Recipe, random_graphs, sample_ids
from tests.looped import looped
from tests.passes.patterns import (
    FUSED,
    FUSIONS,
    fuse_all,
    fused_by,
    ingredients,
    inner,
    leaves_of,
    pattern_graph,
)

TEXTS = Path(__file__).parents[1] / "data" / "fusions"
PATTERNS = [(fusion.name, i) for fusion in FUSIONS.values() for i in range(len(fusion.patterns()))]
SAMPLES = [(op, sample) for op in sorted(FUSED, key=lambda op: op.name) for sample in op.samples()]


def with_outputs(graph: Graph, **more: Node) -> Graph:
    return Graph(graph.nodes, {**graph.outputs, **more})


def assert_same_meaning(before: Graph, after: Graph, recipe: Recipe) -> None:
    with np.errstate(all="ignore"):
        wanted, got = interpret(before, recipe.arrays()), interpret(after, recipe.arrays())
    assert wanted.keys() == got.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(got[name], value)


def test_fusions_are_found() -> None:
    assert {"rms_norm_mul", "swiglu", "dequant_mul_mat", "mul_mat_bias", "mul_mat_residual"} <= set(FUSIONS)


@looped(("op", "sample"), SAMPLES, ids=sample_ids(SAMPLES))
def test_a_decomposition_is_fused_again(op: Op, sample: Sample) -> None:
    g = Builder()
    names = tuple(f"operand_{i}" for i in range(len(sample.inputs)))
    operands = leaves_of(g, op, sample, names)
    assert op.decompose is not None
    attributes = {**op.attributes, **sample.attributes}
    made = op.decompose(g, *operands.values(), **attributes)
    plain = g.finish(**as_outputs(made if isinstance(made, tuple) else (made,), isinstance(made, tuple)))
    fused, counts = fuse_all(plain, ingredients(op))
    (node,) = computed(verify(fused))
    assert node.op is op
    assert node.inputs == tuple(operands.values())
    assert counts.applied
    fills = {name: (sample, i) for i, name in enumerate(names)}
    assert_same_meaning(plain, fused, Recipe(fused, fills))
    assert_same_meaning(plain, expand(fused), Recipe(fused, fills))
    assert [node.name for node in expand(fused).outputs.values()] == [n.name for n in plain.outputs.values()]


def computed(graph: Graph) -> list[Node]:
    """All but leaves and what reads one of several results."""
    return [node for node in inner(graph) if node.op is not part]


@looped(("name", "i"), PATTERNS)
def test_a_pattern_is_rewritten_once_and_keeps_its_provenance(name: str, i: int) -> None:
    recipe = pattern_graph(name, i)
    before = recipe.graph.outputs
    fused, counts = fused_by(recipe.graph, name)
    assert counts.counts == {name: 1}
    (node,) = computed(verify(fused))
    assert counts.applied == (AppliedFusion(name, node.name, node.origin),)
    assert not counts.refused
    assert node.op is FUSIONS[name].replace
    assert sorted(node.origin) == sorted(part.name for part in inner(recipe.graph))
    for output, result in fused.outputs.items():
        root = before[output]
        assert (result.name, result.source, result.type) == (root.name, root.source, root.type)
        assert result.origin[0] == root.name
        assert result is node or result.origin == (root.name,)
    assert_same_meaning(recipe.graph, fused, recipe)


@looped(("name", "i"), PATTERNS)
@pytest.mark.parametrize("reader", ["output", "node"])
def test_a_pattern_with_another_reader_inside_is_refused_with_the_reason(
    name: str, i: int, reader: str
) -> None:
    recipe = pattern_graph(name, i)
    results = list(recipe.graph.outputs.values())
    pattern, _ = FUSIONS[name].patterns()[i]
    root = results[0] if isinstance(pattern, Several) else results[-1]
    for inside in (node for node in inner(recipe.graph) if node not in results):
        if reader == "output":
            graph = with_outputs(recipe.graph, extra=inside)
        else:
            g = Builder()
            other = g.scale(g.input("y", inside.dtype, inside.shape), 2.0, name="other")
            other = Node(other.op, (inside,), other.type, other.name, other.attributes)
            graph = Graph((*recipe.graph.nodes, other), {**recipe.graph.outputs, "extra": other})
        fused, counts = fused_by(verify(graph), name)
        if counts.applied:  # shorter patterns of the fusion end at the node that others read, or behind it
            assert inside.name in {node.name for node in fused.nodes}
            assert_same_meaning(graph, verify(fused), recipe)
            continue
        assert Refused(name, root.name, f"{inside.name} is read by others too", inside.name) in counts.refused
        assert_same_meaning(graph, verify(fused), recipe)


@looped(("name", "i"), PATTERNS)
def test_a_fusion_that_nobody_wants_is_not_applied(name: str, i: int) -> None:
    graph = pattern_graph(name, i).graph
    assert fuse_all(graph, FUSED - {FUSIONS[name].replace})[1].counts.get(name) is None
    assert inner(fuse(graph, ())[0]) == inner(graph)


def test_quantised_weights_are_taken_as_the_file_has_them() -> None:
    g = Builder(max_tokens=4)
    y = g.mul_mat(g.weight("w", dtype("q4_1"), (8, 32)), g.input("x", F32, (g.n_tokens, 32)))
    fused, counts = fuse(g.finish(y=y), FUSED)
    (node,) = inner(fused)
    assert [source.name for source in node.inputs] == ["w", "x"]
    assert counts.counts == {"dequant_mul_mat": 1}


@settings(deadline=None)
@given(random_graphs(without=QUANTIZING))
def test_random_graphs_keep_their_meaning(recipe: Recipe) -> None:
    fused, _ = fuse_all(recipe.graph, FUSED)
    assert_same_meaning(recipe.graph, verify(fused), recipe)


def without_sources(text: str) -> str:
    return re.sub(r' at "[^"]*":\d+', "", text)


def test_golden_text_of_a_gated_feed_forward() -> None:
    g = Builder(max_tokens=3)
    x = g.input("x", F32, (g.n_tokens, 32))
    gate, up, down = (g.weight(f"{name}.weight", dtype("q8_0"), shape) for name, shape in
                      (("gate", (64, 32)), ("up", (64, 32)), ("down", (32, 64))))  # fmt: skip
    with g.scope("layers.0"):
        hidden = g.mul(g.silu(g.mul_mat(gate, x, "gate")), g.mul_mat(up, x, "up"), "swiglu")
        graph = g.finish(y=g.add(x, g.mul_mat(down, hidden, "down"), "residual"))
    assert without_sources(write(graph)) == (TEXTS / "gated_ffn.before.txt").read_text()
    fused, counts = fuse(graph, FUSED)
    assert without_sources(write(fused)) == (TEXTS / "gated_ffn.after.txt").read_text()
    assert counts.counts == {"dequant_mul_mat": 3, "swiglu": 1, "mul_mat_residual": 1}
