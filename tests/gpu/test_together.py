"""Neighbours that one lowering makes together, on a driver that runs kernels in Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from graphml_gpu import lowering, together
from graphml_gpu.device import GpuDevice
from graphml_gpu.dispatch import DeviceView, Dispatch, GpuLowering, Joint, along, rows
from graphml_gpu.language import Read, Write, f32, group_id, kernel, u32
from graphml_gpu.plain_driver import PlainDriver

from graphml.backend import no_progress
from graphml.ir.dtype import F32
from graphml.ir.graph import Graph
from graphml.ir.interpreter import interpret
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.ops.elementwise import neg
from graphml.ir.shape import Symbol
from graphml.passes.plan import plan_memory


@kernel
def negative(x: Read[f32], out: Write[f32], n: u32) -> None:
    """out = -x. x, out [n]."""
    if group_id(0) < n:
        out[group_id(0)] = 0.0 - x[group_id(0)]


def lower_negative(node: Node, context: DeviceView) -> list[Dispatch]:
    count = rows(node.shape)
    return [Dispatch(negative, {}, {"x": node.inputs[0], "out": node}, {"n": count}, along(count))]


def lower_pair(nodes: Sequence[Node], context: DeviceView) -> list[Dispatch] | None:
    """Two negatives, and no more of them, in the order that would be wrong if there were one."""
    if len(nodes) != 2:
        return None
    return [replace(lower_negative(node, context)[0], label="pair") for node in reversed(nodes)]


def three(chained: bool) -> Graph:
    g, tokens = Builder(), Symbol("T", 5)
    x, y = (g.input(name, F32, (tokens, 6)) for name in ("x", "y"))
    one = g.call(neg, x)
    two = g.call(neg, one if chained else y)
    return g.finish(one=one, two=two, three=g.call(neg, two if chained else x))


@pytest.mark.parametrize(
    ("kind", "labels"), [("apart", ["pair", "pair", ""]), ("chained", [""] * 3), ("overlapping", [""] * 3)]
)
def test_neighbours_are_made_together(monkeypatch: pytest.MonkeyPatch, kind: str, labels: list[str]) -> None:
    """But not where one reads what another makes, nor where two lie in the same place."""
    monkeypatch.setattr(together, "joints", lambda: (Joint(frozenset({"neg"}), lower_pair),))
    monkeypatch.setitem(lowering.table(), "neg", GpuLowering(("neg",), lower_negative))
    graph, device = three(kind == "chained"), GpuDevice(PlainDriver())
    plan = plan_memory(graph, device)
    if kind == "overlapping":
        plan = replace(plan, offsets=dict.fromkeys(plan.offsets, 0))
    program = device.lower(graph, plan, {}, no_progress)
    assert [dispatch.label for _, dispatch in program.dispatches] == labels
    if kind != "overlapping":
        leaves = graph.leaves("input")
        values = {name: np.arange(18, dtype=np.float32).reshape(3, 6) + i for i, name in enumerate(leaves)}
        for name, value in values.items():
            program.inputs[name][:3] = value
        made = program.run({"T": 3}, device.state(graph, {}))
        for name, want in interpret(graph, values).items():
            np.testing.assert_array_equal(made[name], want)
