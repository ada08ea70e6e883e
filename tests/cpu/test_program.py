"""CPU programs as wholes: nothing falls back unasked, few barriers, any threads, any places, any states."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from graphml_cpu import BACKEND
from graphml_cpu.device import CpuDevice
from graphml_cpu.lowering import table
from graphml_cpu.lowering.step import CpuLowering
from graphml_cpu.program import CpuProgram
from graphml_cpu.state import CpuState

from graphml.backend import Plan, no_progress
from graphml.backend.node_values import viewed
from graphml.compiler.compile import prepare
from graphml.ir.cells import BLOCK_SIZE
from graphml.ir.dtype import F32, dtype
from graphml.ir.graph import Graph
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.passes.plan import plan_memory
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from graphml.runtime.programs.step_inputs import as_graph_array
from tests import golden
from tests.golden import Floats, nmse
from tests.sample_models import MODELS, write_model

NAMES = ["llama-dense", "llama-moe"]
N_BATCH = 24
N_CELLS = 2 * BLOCK_SIZE
TOKENS = golden.read("llama-dense").tokens
SENTINEL = 0xFF  # float32 NaNs: what reads memory before it is written shows, too
GAP = 256


@dataclass
class Run:
    """A program and the graph and plan that it was made of."""

    program: CpuProgram
    graph: Graph
    plan: Plan
    device: CpuDevice
    arena: np.ndarray

    def state(self) -> CpuState:
        return self.device.state(self.graph, {"C": N_CELLS})

    def feed(self, tokens: list[int], position: int, state: CpuState) -> Floats:
        """Logits of all tokens, which come after `position` others of their sequence."""
        count, inputs = len(tokens), self.program.inputs
        places = np.arange(position, position + count)
        for name, value in {"tokens": tokens, "positions": places, "cells": places, "sequences": 0}.items():
            inputs[name][:count] = value
        if "output_rows" in inputs:  # a step of one token has its row alone
            inputs["output_rows"][:count] = np.arange(count)
        n_blocks = N_CELLS // BLOCK_SIZE
        inputs["block_table"][0, :n_blocks] = np.arange(n_blocks)
        dims = {"T": count, "O": count, "S": 1, "B": n_blocks, "C": N_CELLS}
        return self.program.run(dims, state)["logits"].copy()


def in_places_of_their_own(plan: Plan, device: CpuDevice) -> Plan:
    """A plan in which no two values share memory, with a gap after each."""
    at = 0
    offsets: dict[Node, int] = {}
    workspaces: dict[Node, int] = {}
    for node in plan.offsets:
        if not node.op.view:
            offsets[node] = at
            at += -(-device.storage(node) // 64) * 64 + GAP
    offsets |= {node: offsets[viewed(node)] for node in plan.offsets if node.op.view}
    for node in plan.workspaces:
        workspaces[node] = at
        at += -(-device.workspace(node) // 64) * 64 + GAP
    return Plan(offsets, workspaces, at, plan.lower_bound)


@cache
def built(name: str, folder: Path) -> Path:
    return golden.build(golden.read(name), folder / f"{name}.gguf")


class Programs:
    """Makes programs of one model file and closes what they were made with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.executors: list[Executor] = []

    def open(self, path: Path, threads: int) -> Executor:
        self.executors.append(open_executor(path, LoadOptions("cpu", threads, kv="f32", n_batch=N_BATCH)))
        return self.executors[-1]

    def __call__(self, name: str, max_tokens: int = N_BATCH, threads: int = 2, apart: bool = False) -> Run:
        executor = self.open(built(name, self.folder), threads)
        device = executor.device
        assert isinstance(device, CpuDevice)
        prepared = prepare(executor.build(max_tokens, max_tokens), executor.backend, device)
        graph, plan = prepared.graph, prepared.plan
        plan = in_places_of_their_own(plan, device) if apart else plan
        arena = np.full(plan.peak + 64, SENTINEL, np.uint8)
        arena = arena[-arena.ctypes.data % 64 :][: plan.peak]
        weights = {tensor: as_graph_array(value) for tensor, value in executor.file.tensors.items()}
        program = CpuProgram(graph, plan, weights, device.team, arena, no_progress, device.support)
        return Run(program, graph, plan, device, arena)


@pytest.fixture
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    made = Programs(tmp_path_factory.getbasetemp())
    yield made
    for executor in made.executors:
        executor.close()


def prompt(run: Run) -> Floats:
    return run.feed(TOKENS[:N_BATCH], 0, run.state())


def one_by_one(run: Run, count: int = 8) -> Floats:
    state = run.state()
    return np.concatenate([run.feed([TOKENS[i]], i, state) for i in range(count)])


@pytest.mark.parametrize("max_tokens", [1, N_BATCH])
@pytest.mark.parametrize("name", NAMES)
def test_everything_has_a_kernel(name: str, max_tokens: int, programs: Programs) -> None:
    program = programs(name, max_tokens).program
    assert [str(node) for node in program.fallbacks] == []
    assert len(program.tapes) == 1


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("llama-dense", "rope"),
        ("llama-dense", "set_rows"),
        ("llama-dense", "attention"),
        ("llama-moe", "top_k"),
    ],
)
def test_ops_without_a_kernel_fall_back(
    name: str, op: str, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(cast(dict[str, CpuLowering], table()), "route_experts")  # it would cover `top_k`
    native = programs(name)
    wanted = prompt(native), one_by_one(native)
    monkeypatch.delitem(cast(dict[str, CpuLowering], table()), op)
    fallen = programs(name)
    assert {node.op.name for node in fallen.program.fallbacks} == {op}
    assert nmse(prompt(fallen), wanted[0]) < 1e-11
    assert nmse(one_by_one(fallen), wanted[1]) < 1e-11


@pytest.mark.parametrize(
    ("name", "op"),
    [("llama-dense", "rms_norm_mul"), ("llama-dense", "rope_set_rows"), ("llama-moe", "combine_experts")],
)
def test_a_fused_op_without_a_kernel_is_not_made(
    name: str, op: str, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = programs(name)
    wanted = prompt(native), one_by_one(native)
    monkeypatch.delitem(cast(dict[str, CpuLowering], table()), op)
    plain = programs(name)
    assert not plain.program.fallbacks
    assert nmse(prompt(plain), wanted[0]) < 1e-11
    assert nmse(one_by_one(plain), wanted[1]) < 1e-11


def test_a_layer_of_a_decoding_step_waits_seven_times_at_most(programs: Programs, tmp_path: Path) -> None:
    path = write_model(tmp_path / "plain.gguf", *MODELS["llama-plain"])
    program = programs.open(path, 2).compiled(1, 1).program
    assert isinstance(program, CpuProgram)
    (tape,) = program.tapes
    for layer in ("layers.0.", "layers.1."):
        steps = [step for step in tape.steps if step.name.startswith(layer)]
        assert len(steps) > 10
        assert 1 <= sum(step.barrier for step in steps) <= 7


@pytest.mark.parametrize("max_tokens", [1, N_BATCH])
@pytest.mark.parametrize("name", NAMES)
def test_any_number_of_threads_says_the_same(name: str, max_tokens: int, programs: Programs) -> None:
    feed = one_by_one if max_tokens == 1 else prompt
    alone = feed(programs(name, max_tokens, threads=1))
    for threads in (2, 3, 16):
        np.testing.assert_array_equal(feed(programs(name, max_tokens, threads)), alone)


@pytest.mark.parametrize("max_tokens", [1, N_BATCH])
@pytest.mark.parametrize("name", NAMES)
def test_sharing_memory_changes_nothing(name: str, max_tokens: int, programs: Programs) -> None:
    feed = one_by_one if max_tokens == 1 else prompt
    shared, apart = programs(name, max_tokens), programs(name, max_tokens, apart=True)
    assert shared.plan.peak < apart.plan.peak / 1.5
    np.testing.assert_array_equal(feed(shared), feed(apart))


@pytest.mark.parametrize("max_tokens", [1, N_BATCH])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_written_beside_the_values(name: str, max_tokens: int, programs: Programs) -> None:
    run = programs(name, max_tokens, threads=3, apart=True)
    feed = one_by_one if max_tokens == 1 else prompt
    assert np.isfinite(feed(run)).all()
    beside = np.ones(len(run.arena), bool)
    for place, size in occupied(run).items():
        assert beside[place : place + size].all()
        beside[place : place + size] = False
    assert beside.sum() >= GAP * len(run.plan.workspaces)
    assert (run.arena[beside] == SENTINEL).all()


def occupied(run: Run) -> Mapping[int, int]:
    """Offset -> bytes of each value and workspace."""
    values = {
        run.plan.offsets[node]: run.device.storage(node) for node in run.plan.offsets if not node.op.view
    }
    return values | {place: run.device.workspace(node) for node, place in run.plan.workspaces.items()}


@pytest.mark.parametrize("name", NAMES)
def test_states_that_take_turns_on_one_program(name: str, programs: Programs) -> None:
    run = programs(name, 1)
    texts = TOKENS[:6], TOKENS[6:12]
    alone = []
    for text in texts:
        state = run.state()
        alone.append([run.feed([token], i, state) for i, token in enumerate(text)])
    states = [run.state() for _ in texts]
    for i in range(6):
        for text, state, wanted in zip(texts, states, alone, strict=True):
            np.testing.assert_array_equal(run.feed([text[i]], i, state), wanted[i])
    assert nmse(alone[0][-1], alone[1][-1]) > 1e-3


def test_a_node_in_numpy_sees_a_reshaped_weight_in_its_new_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(cast(dict[str, CpuLowering], table()), "mul")
    g = Builder(max_tokens=3)
    weight = g.weight("w", dtype("f32"), (4, 2))
    x = g.input("x", dtype("f32"), (g.n_tokens, 8))
    graph = g.finish(result=g.mul(x, g.reshape(weight, 8, keep=0)))
    device = CpuDevice(2)
    numbers = np.arange(8, dtype=np.float32).reshape(4, 2)
    program = device.lower(graph, plan_memory(graph, device), {"w": numbers}, no_progress)
    program.inputs["x"][:] = 2
    result = program.run({"T": 3}, device.state(graph, {}))["result"]
    assert [node.op.name for node in program.fallbacks] == ["mul"]
    assert result.tolist() == [[0, 2, 4, 6, 8, 10, 12, 14]] * 3
    device.close()


def test_a_program_goes_with_who_held_it_and_does_not_wait_for_the_collector() -> None:
    """Its arena may be a gigabyte."""
    g = Builder(max_tokens=2)
    graph = g.finish(y=g.silu(g.input("x", F32, (g.n_tokens, 8))))
    device = BACKEND.open(1)
    gc.disable()
    try:
        program = device.lower(graph, plan_memory(graph, device), {}, no_progress)
        gone = weakref.ref(program)
        del program
        assert gone() is None
    finally:
        gc.enable()
        device.close()
