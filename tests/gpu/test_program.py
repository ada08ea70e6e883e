"""The runtime of GPU backends on a driver that runs kernels in Python: memory, numbers, NumPy in between."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest
from graphml_gpu import lowering
from graphml_gpu.device import GpuDevice
from graphml_gpu.dispatch import Context, Dispatch, Lowering, along, number, rows
from graphml_gpu.language import (
    Read,
    Write,
    f32,
    global_id,
    group_id,
    kernel,
    local_id,
    num_groups,
    u32,
)
from graphml_gpu.plain_driver import PlainDriver, small
from graphml_gpu.program import GpuProgram

from graphml.backend import no_progress
from graphml.errors import BackendError
from graphml.ir.dtype import F32
from graphml.ir.graph import Graph
from graphml.ir.interpreter import interpret
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.shape import Symbol
from graphml.passes.plan import plan_memory

T = Symbol("T", 5)


@kernel
def scale_rows(
    x: Read[f32], out: Write[f32], rows: u32, n: u32, factor: f32, offset: f32, *, GROUP: int = 4
) -> None:
    """out = x * factor + offset, a row a workgroup. x, out [rows, n]."""
    row = group_id(0) + group_id(1) * num_groups(0)
    if row < rows:
        for i in range(local_id(0), n, GROUP):
            out[row * n + i] = x[row * n + i] * factor + offset


@kernel
def some_rows(
    w: Read[f32],
    x: Read[f32],
    y: Write[f32],
    rows: u32,
    n: u32,
    k: u32,
    first: u32,
    count: u32,
    *,
    GROUP: int = 4,
) -> None:
    """Some of the columns of y = x @ w.T: `count` from `first` on. w [count, k], x [rows, k], y [rows, n]."""
    i = global_id(0)
    if i < rows * count:
        total = f32(0.0)
        for j in range(0, k):
            total += w[i % count * k + j] * x[i // count * k + j]
        y[i // count * n + first + i % count] = total


def lower_scale(node: Node, context: Context) -> list[Dispatch]:
    x = node.inputs[0]
    count = rows(x.shape[:-1])
    numbers = {"factor": number(node, "factor"), "offset": number(node, "offset")}
    buffers = {"x": x, "out": node}
    return [Dispatch(scale_rows, {}, buffers, {"rows": count, "n": x.shape[-1], **numbers}, along(count))]


def lower_product(node: Node, context: Context) -> list[Dispatch]:
    w, x = node.inputs[:2]
    count, (n, k) = rows(x.shape[:-1]), w.shape
    return [
        Dispatch(
            some_rows,
            buffers={"w": piece, "x": x, "y": node},
            scalars={"rows": count, "n": n, "k": k, "first": piece.first, "count": piece.count},
            groups=along(count * piece.count, 4),
        )
        for piece in context.pieces(w)
    ]


KERNELS = {
    "scale": Lowering(("scale",), lower_scale),
    "mul_mat": Lowering(("mul_mat",), lower_product),
}


@pytest.fixture(autouse=True)
def only_these_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    table = lowering.table()
    for name in [*table]:
        monkeypatch.delitem(table, name)
    for name, value in KERNELS.items():
        monkeypatch.setitem(table, name, value)


@pytest.fixture
def driver() -> PlainDriver:
    return PlainDriver()


@pytest.fixture
def device(driver: PlainDriver) -> Iterator[GpuDevice]:
    opened = GpuDevice(driver)
    yield opened
    opened.close()


def lowered(graph: Graph, device: GpuDevice, weights: dict[str, Array] | None = None) -> GpuProgram:
    return device.lower(graph, plan_memory(graph, device), weights or {}, no_progress)


def numbers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def chain() -> Graph:
    """A kernel, NumPy, a view of what NumPy made, a kernel."""
    g = Builder()
    x = g.input("x", F32, (T, 6))
    y = g.silu(g.scale(x, 2.0, 1.0))
    return g.finish(y=g.scale(g.reshape(y, 2, 3), 0.5, 0.0), x=x)


def test_kernels_and_numpy_take_turns(device: GpuDevice, driver: PlainDriver) -> None:
    program = lowered(chain(), device)
    assert [node.op.name for node in program.fallbacks] == ["silu"]
    for count in (3, 5, 1):
        x = numbers(count, 6)
        program.inputs["x"][:count] = x
        made = program.run({"T": count}, device.state(chain(), {}))
        want = interpret(chain(), {"x": x})
        np.testing.assert_allclose(made["y"], want["y"], rtol=1e-5)
        np.testing.assert_array_equal(made["x"], x)
        assert made["y"].shape == (count, 2, 3)


def test_a_step_costs_one_write_one_submit_one_read(device: GpuDevice, driver: PlainDriver) -> None:
    g = Builder()
    y = g.scale(g.scale(g.input("x", F32, (T, 6)), 2.0, 0.0), 3.0, 0.0)
    graph = g.finish(y=y, other=g.scale(y, 1.0, 1.0))
    program, state = lowered(graph, device), device.state(graph, {})
    program.run({"T": 2}, state)
    for dims, writes in (({"T": 2}, 1), ({"T": 3}, 2), ({"T": 3}, 1)):
        before = driver.written, driver.submitted, driver.read_back
        program.run(dims, state)
        assert driver.written - before[0] == writes
        assert (driver.submitted - before[1], driver.read_back - before[2]) == (1, 1)


def test_weights_larger_than_a_binding_lie_in_pieces() -> None:
    device = GpuDevice(small(max_binding_bytes=1024))
    g, w, x = Builder(), numbers(37, 16), numbers(3, 16)
    graph = g.finish(y=g.mul_mat(g.weight("w", F32, (37, 16)), g.input("x", F32, (T, 16))))
    program = lowered(graph, device, {"w": w})
    assert len(program.dispatches) == 3
    program.inputs["x"][:3] = x
    got = program.run({"T": 3}, device.state(graph, {}))["y"]
    np.testing.assert_allclose(got, x @ w.T, rtol=1e-5, atol=1e-5)
    g = Builder()
    graph = g.finish(y=g.mul_mat(g.weight("w", F32, (2, 512)), g.input("x", F32, (T, 512))))
    with pytest.raises(BackendError, match=r"one of 2 parts is 2048 bytes.*holds 1024"):
        lowered(graph, device, {"w": numbers(2, 512)})


def test_programs_share_weights_and_give_them_back(device: GpuDevice) -> None:
    g, w = Builder(), numbers(8, 16)
    graph = g.finish(y=g.mul_mat(g.weight("w", F32, (8, 16)), g.input("x", F32, (T, 16))))
    asked: list[str] = []
    buffer = device.memory.driver.buffer
    device.memory.driver.buffer = lambda n, label: asked.append(label) or buffer(n, label)  # type: ignore
    one, other = lowered(graph, device, {"w": w}), lowered(graph, device, {"w": w})
    assert asked.count("w") == 1
    del one, other
    gc.collect()
    lowered(graph, device, {"w": w})
    assert asked.count("w") == 2
