"""A thread that comes late to a token joins in again soon: no row of its own is carried on for long."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from graphml_cpu import BACKEND
from graphml_cpu.program import CpuProgram
from graphml_cpu.runtime.tape import Tape

from graphml.backend import no_progress
from graphml.ir.dtype import F32
from graphml.ir.graph import Graph
from graphml.ir.interpreter import interpret
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.passes.plan import plan_memory
from tests.golden import Floats

WIDTH, N_LAYERS = 64, 30
MOST_LEFT_OUT = 16  # stretches: a shared step of these graphs takes one or two
WEIGHTS = {
    f"w{i}": (np.random.default_rng(i).standard_normal((WIDTH, WIDTH)) / 8).astype(np.float32)
    for i in range(N_LAYERS)
}


def layers(of_layer: Callable[[Builder, Node, Node, Node], Node]) -> Graph:
    """of_layer: the hidden row after a layer, from that before it, an early row, and the layer's matrix."""
    g = Builder()
    x = g.input("x", F32, (1, WIDTH))
    early, hidden = g.scale(x, 0.5), g.scale(x, 2.0)
    for i in range(N_LAYERS):
        hidden = of_layer(g, hidden, early, g.weight(f"w{i}", F32, (WIDTH, WIDTH)))
    return g.finish(result=g.scale(hidden, 3.0))


def normed_after(g: Builder, hidden: Node, early: Node, weight: Node) -> Node:
    return g.add(hidden, g.rms_norm(g.mul_mat(weight, hidden), None, 1e-5))


def with_an_early_row(g: Builder, hidden: Node, early: Node, weight: Node) -> Node:
    return g.mul_mat(weight, g.add(hidden, early))


def plain(g: Builder, hidden: Node, early: Node, weight: Node) -> Node:
    return g.mul_mat(weight, g.rms_norm(hidden, None, 1e-5))


def program_of(graph: Graph, threads: int) -> CpuProgram:
    device = BACKEND.open(threads)
    program = device.lower(graph, plan_memory(graph, device), WEIGHTS, no_progress)
    assert isinstance(program, CpuProgram)
    return program


def result(graph: Graph, x: Floats, threads: int) -> Floats:
    program = program_of(graph, threads)
    program.inputs["x"][:] = x
    return program.run({}, BACKEND.open(threads).state(graph, {}))["result"].copy()


def left_out(tape: Tape) -> int:
    """The most stretches that a thread is left out of which comes to one and has missed all before."""
    needed = tape._stretches[:, 3].tolist()
    longest = 0
    for first in range(1, len(needed)):
        since = first
        while since < len(needed) and since > needed[since]:
            since += 1
        longest = max(longest, since - first)
    return longest


@pytest.mark.parametrize("of_layer", [normed_after, with_an_early_row, plain])
def test_who_comes_late_is_not_left_out_for_long(
    of_layer: Callable[[Builder, Node, Node, Node], Node],
) -> None:
    graph = layers(of_layer)
    (tape,) = program_of(graph, 2).tapes
    assert len(tape._stretches) >= N_LAYERS
    assert any(step.replicated for step in tape.steps)
    assert left_out(tape) <= MOST_LEFT_OUT
    x = np.linspace(-1, 1, WIDTH, dtype=np.float32)[None]
    want = interpret(graph, {"x": x, **WEIGHTS})["result"]
    one = result(graph, x, 1)
    np.testing.assert_allclose(one, want, rtol=1e-3, atol=1e-3 * float(np.abs(want).max()))
    for threads in (2, 3):
        for _ in range(20):  # which thread comes late differs from run to run
            np.testing.assert_array_equal(result(graph, x, threads), one)


def test_what_is_read_outside_is_made_once() -> None:
    """By any thread: none has to be waited for, since there is no first thread's copy to be read."""
    g = Builder()
    x = g.input("x", F32, (1, WIDTH))
    row = g.scale(x, 2.0)
    (tape,) = program_of(g.finish(row=row, more=g.mul_mat(g.weight("w0", F32, (WIDTH, WIDTH)), row)), 2).tapes
    assert not any(step.replicated for step in tape.steps)
    assert tape.anyone


def test_a_copy_of_ones_own_never_lies_on_a_row_that_all_read() -> None:
    """The first thread's copy would be written while another thread reads what lies there."""
    graph = layers(lambda *layer: layer[0].scale(normed_after(*layer), 0.5))
    places = program_of(graph, 2).places
    offsets = places._plan.offsets
    on_others = [
        (node, source)
        for node in graph.nodes
        for source in node.inputs
        if node in offsets and offsets[node] == offsets.get(source)
    ]
    assert len(on_others) >= N_LAYERS  # each half of a sum lies on the sum
    for node, source in on_others:
        assert places.is_replicated(source) or not places.is_replicated(node)
