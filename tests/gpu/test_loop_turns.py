"""Drivers that end loops: llvmpipe after 65,535 turns of all loops of an invocation, and says nothing."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from graphml_gpu.device import GpuDevice
from graphml_gpu.limits import no_room
from graphml_gpu.node_support import GpuNodeSupport
from graphml_gpu.plain_driver import FACTS, PlainDriver

from graphml.backend import no_progress
from graphml.errors import BackendError
from graphml.ir.dtype import F32, I32
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.ops.attention import attention
from graphml.ir.ops.index import top_k
from graphml.ir.ops.sparse import select_blocks
from graphml.ir.ops.ssm import ssm_scan
from graphml.ir.shape import Symbol
from graphml.passes.plan import plan_memory
from tests.gpu.on_devices import REAL, nmse, run_both

on_real_devices = pytest.mark.parametrize("device", REAL)


@on_real_devices
@pytest.mark.parametrize(("n", "k"), [(9000, 2000), (34816, 128)], ids=["in turn", "by columns"])
def test_many_of_a_long_row_are_chosen(n: int, k: int, device: str) -> None:
    """The second row has as many of its largest as can be in the same columns."""
    x = np.random.default_rng(n).standard_normal((2, n), np.float32)
    x[1] = np.tile(np.sort(x[0, :512]), n // 512 + 1)[:n]
    g = Builder()
    graph = g.finish(y=g.call(top_k, g.input("x", F32, (Symbol("T", 2), n)), k=k))
    made, wanted = run_both(graph, {"x": x}, device, T=2)
    np.testing.assert_array_equal(made["y"], wanted["y"])


@on_real_devices
def test_many_blocks_of_one_score_are_chosen_in_order(device: str) -> None:
    n, blocks = 9000, 282
    g = Builder()
    q, k = g.input("q", F32, (Symbol("T", 1), 1, 4)), g.state("k", F32, (blocks * 32, 1, 4))
    leaves = [g.input(name, I32, (Symbol("T", 1),)) for name in ("positions", "sequences")]
    table = g.input("table", I32, (1, blocks))
    graph = g.finish(y=g.call(select_blocks, q, k, *leaves, table, n=5, block_size=32))
    values = {
        "q": np.ones((1, 1, 4), np.float32), "k": np.zeros((blocks * 32, 1, 4), np.float32),
        "positions": np.array([n - 1], np.int32), "sequences": np.zeros(1, np.int32),
        "table": np.arange(blocks, dtype=np.int32)[None],
    }  # fmt: skip
    values["k"][[7, 4000]] = 1.0
    made, _ = run_both(graph, values, device, T=1)
    np.testing.assert_array_equal(made["y"][0, 0], [7, 4000, 0, 1, 2])


@on_real_devices
def test_a_scan_of_many_tokens_and_a_wide_state_is_finished(device: str) -> None:
    tokens, d_state, head_dim = 520, 128, 4
    random = np.random.default_rng(3)
    T = Symbol("T", tokens)
    shapes = {
        "x": (tokens, head_dim), "dt": (tokens, 1), "a": (1, 1), "b": (tokens, d_state),
        "c": (tokens, d_state), "d": (1,),
    }  # fmt: skip
    values: dict[str, Array] = {
        name: random.standard_normal(s).astype(np.float32) for name, s in shapes.items()
    }
    values["a"] = -np.abs(values["a"])
    values |= {"positions": np.arange(tokens, dtype=np.int32), "sequences": np.zeros(tokens, np.int32)}
    values["s"] = np.zeros((1, 1, d_state, head_dim), np.float32)
    g = Builder()
    state = g.state("s", F32, (1, 1, d_state, head_dim))
    made_of = [
        g.input(name, F32, (T if shape[0] == tokens else shape[0], *shape[1:]))
        for name, shape in shapes.items()
    ]
    step = [g.input(name, I32, (T,)) for name in ("sequences", "positions")]
    made, wanted = run_both(g.finish(y=g.call(ssm_scan, state, *made_of, *step)), values, device, T=tokens)
    assert nmse(made["y"], wanted["y"]) < 1e-9


LIMITED = dataclasses.replace(FACTS, loop_turns=400)


def attended(g: Builder, tokens: int, blocks: int) -> Node:
    T = Symbol("T", tokens)
    k, v = (g.state(name, F32, (blocks * 32, 1, 4)) for name in "kv")
    step = [g.input(name, I32, (T,)) for name in ("positions", "sequences")]
    table = g.input("table", I32, (1, blocks))
    return g.call(attention, g.input("q", F32, (T, 1, 4)), k, v, *step, table, scale=1.0, block_size=32)


@pytest.mark.parametrize(("tokens", "blocks", "turns"), [(8, 64, 400), (1, 1024, 100)])
def test_a_step_that_would_not_be_finished_is_refused(tokens: int, blocks: int, turns: int) -> None:
    g = Builder()
    graph = g.finish(y=attended(g, tokens, blocks))
    opened = GpuDevice(PlainDriver(dataclasses.replace(LIMITED, loop_turns=turns)))
    program = opened.lower(graph, plan_memory(graph, opened), {}, no_progress)
    state = opened.state(graph, {})
    program.inputs["positions"][:] = 5
    program.run({"T": tokens}, state)
    program.inputs["positions"][:] = 32 * blocks - 1
    with pytest.raises(BackendError, match=f"ends loops after {turns}: give it a shorter context"):
        program.run({"T": tokens}, state)


def test_a_node_whose_loops_are_too_long_anywhere_is_refused_before_it_is_placed() -> None:
    g = Builder()
    node = g.call(top_k, g.input("x", F32, (1, 1 << 18)), k=200)
    support = GpuNodeSupport("plain")
    features = LIMITED.features()
    assert no_room(node, support, FACTS, features) is None
    assert "ends loops after 400" in str(no_room(node, support, LIMITED, features))
