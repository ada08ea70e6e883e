"""Rows as long as a vocabulary: all threads reduce one row together, the same on any number of threads."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from graphml_cpu import BACKEND
from graphml_cpu.layouts import LONG_ROW, ROW_CHUNK
from graphml_cpu.program import CpuProgram

from graphml.backend import no_progress
from graphml.ir.dtype import F32
from graphml.ir.graph import Graph
from graphml.ir.interpreter import interpret
from graphml.ir.language import Builder
from graphml.ir.op import Array
from graphml.ir.shape import Symbol
from graphml.passes.plan import plan_memory

WIDTHS = [LONG_ROW - 1, LONG_ROW, 5 * ROW_CHUNK + 1, 6 * ROW_CHUNK - 3]
OPS = ["softmax", "sum_rows", "max_rows", "min_rows", "top_k"]


def graph_of(op: str, n: int, rows: int = 3) -> Graph:
    g = Builder()
    x = g.input("x", F32, (Symbol("T", rows), n))
    result = g.top_k(x, 32) if op == "top_k" else getattr(g, op)(x)
    return g.finish(result=result)


@functools.cache
def opened(op: str, n: int, threads: int, rows: int = 3) -> tuple[CpuProgram, Graph]:
    graph, device = graph_of(op, n, rows), BACKEND.open(threads)
    program = device.lower(graph, plan_memory(graph, device), {}, no_progress)
    assert isinstance(program, CpuProgram)
    return program, graph


def run(op: str, x: Array, threads: int) -> Array:
    program, graph = opened(op, x.shape[1], threads)
    program.inputs["x"][: len(x)] = x
    device_state = BACKEND.open(1).state(graph, {"T": len(x)})
    return program.run({"T": len(x)}, device_state)["result"].copy()


def rows_of(n: int) -> Array:
    x = (np.random.default_rng(n).standard_normal((3, n)) * 4).astype(np.float32)
    x[1] = np.round(x[1])  # equals, for top_k
    x[2] -= 100000
    x[2, : ROW_CHUNK + 5] = -np.inf
    return x


@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize("op", OPS)
def test_long_rows_mean_the_same_on_any_number_of_threads(op: str, n: int) -> None:
    x = rows_of(n)
    x = x[:2] if op == "sum_rows" else x
    want = interpret(graph_of(op, n), {"x": x.astype(np.float32)})["result"]
    one = run(op, x, 1)
    if op == "top_k":
        np.testing.assert_array_equal(one, want)
    else:
        bound = 2e-6 * (np.abs(x).sum(axis=1).max() / n if op == "sum_rows" else 1)
        np.testing.assert_allclose(one, want, rtol=1e-5, atol=bound)
    for threads in (2, 3):
        np.testing.assert_array_equal(run(op, x, threads), one)


@pytest.mark.parametrize("op", OPS)
def test_every_thread_takes_part_in_one_long_row(op: str) -> None:
    program, _ = opened(op, 2 * LONG_ROW, 2, rows=1)
    (tape,) = program.tapes
    assert len(tape.steps) == 2
    assert not any(step.replicated or step.serial for step in tape.steps)
    assert tape.steps[0].barrier
    short, _ = opened(op, 4096, 2, rows=1)
    assert len(short.tapes[0].steps) == 1


@pytest.mark.parametrize(
    ("place", "value"), [(3, np.nan), (LONG_ROW + 7, np.inf), (slice(None), -np.inf)], ids=str
)
def test_softmax_of_what_is_no_number(place: int, value: float) -> None:
    x = rows_of(WIDTHS[2])
    x[1, place] = value
    for threads in (1, 2):
        got = run("softmax", x, threads)
        assert np.isnan(got[1]).all()
        assert not np.isnan(got[[0, 2]]).any()


def test_the_largest_of_rows_with_nan() -> None:
    x = rows_of(WIDTHS[2])
    x[0, ::2], x[1], x[2, 17:] = np.nan, np.nan, np.nan
    want = np.argsort(-x, axis=1, kind="stable")[:, :32]
    np.testing.assert_array_equal(run("top_k", x, 2), want)
