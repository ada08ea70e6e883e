"""The runtime of GPU backends on a driver that runs kernels in Python: memory, numbers, NumPy in between."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from graphml_gpu import lowering
from graphml_gpu.device import GpuDevice
from graphml_gpu.dispatch import (
    DeviceView,
    Dispatch,
    GpuLowering,
    GpuWorkspace,
    Zeros,
    along,
    number,
    rows,
)
from graphml_gpu.driver import Buffer
from graphml_gpu.language import (
    Read,
    Update,
    Write,
    atomic_add,
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

from graphml.backend import StepTime, no_progress
from graphml.errors import BackendError
from graphml.ir.dtype import F32, I32
from graphml.ir.graph import Graph
from graphml.ir.interpreter import interpret
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.ops.index import set_rows
from graphml.ir.shape import Symbol, max_elements
from graphml.passes.plan import plan_memory

T = Symbol("T", 5)


@kernel
def scale_rows(
    x: Read[f32],
    work: Update[f32],
    out: Write[f32],
    rows: u32,
    n: u32,
    factor: f32,
    offset: f32,
    *,
    GROUP: int = 4,
) -> None:
    """out = x * factor + offset by way of `work`, a row a workgroup. x, work, out [rows, n]."""
    row = group_id(0) + group_id(1) * num_groups(0)
    if row < rows:
        for i in range(local_id(0), n, GROUP):
            work[row * n + i] = x[row * n + i] * factor
            out[row * n + i] = work[row * n + i] + offset


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


@kernel
def put_rows(state: Update[f32], x: Read[f32], ids: Read[u32], done: Update[u32], rows: u32, n: u32) -> None:
    """state[ids[i]] = x[i]; groups count themselves in `done`, the last makes it 0."""
    row = group_id(0)
    for i in range(0, n):
        state[ids[row] * n + i] = x[row * n + i]
    if atomic_add(done, 0, 1) + 1 == rows:
        atomic_add(done, 0, 0 - rows)


def lower_put(node: Node, context: DeviceView) -> list[Dispatch]:
    _, x, ids = node.inputs
    buffers = {"state": node, "x": x, "ids": ids, "done": Zeros(node, 4)}
    count = rows(ids.shape)
    return [Dispatch(put_rows, {}, buffers, {"rows": count, "n": x.shape[-1]}, along(count))]


def lower_scale(node: Node, context: DeviceView) -> list[Dispatch]:
    x = node.inputs[0]
    count = rows(x.shape[:-1])
    numbers = {"factor": number(node, "factor"), "offset": number(node, "offset")}
    buffers = {"x": x, "work": GpuWorkspace(node), "out": node}
    return [Dispatch(scale_rows, {}, buffers, {"rows": count, "n": x.shape[-1], **numbers}, along(count))]


def lower_product(node: Node, context: DeviceView) -> list[Dispatch]:
    w, x = node.inputs[:2]
    count, (n, k) = rows(x.shape[:-1]), w.shape
    return [
        Dispatch(
            some_rows,
            buffers={"w": shard, "x": x, "y": node},
            scalars={"rows": count, "n": n, "k": k, "first": shard.first, "count": shard.count},
            groups=along(count * shard.count, 4),
        )
        for shard in context.shards(w)
    ]


KERNELS = {
    "scale": GpuLowering(("scale",), lower_scale, workspace=lambda node: 4 * max_elements(node.shape)),
    "mul_mat": GpuLowering(("mul_mat",), lower_product),
    "set_rows": GpuLowering(("set_rows",), lower_put),
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


def chain_of(n: int) -> Graph:
    g = Builder()
    return g.finish(y=g.scale(g.input("x", F32, (T, n)), 2.0, 1.0))


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
    for step, (dims, writes) in enumerate((({"T": 2}, 1), ({"T": 3}, 2), ({"T": 3}, 1), ({"T": 3}, 0))):
        before = driver.written, driver.submitted, driver.read_back
        program.inputs["x"][:, ::5] = min(step, 2) + 1
        made = program.run(dims, state)
        assert (driver.written - before[0], driver.submitted - before[1]) == (writes, 1)
        assert driver.read_back == before[2]
        np.testing.assert_array_equal(made["other"], made["y"] + 1)
        assert driver.read_back - before[2] == 1


def test_what_was_not_read_is_gone_after_the_next_run(device: GpuDevice) -> None:
    graph = chain_of(1 << 15)  # so large that it is not read along with others
    graph = Graph(graph.nodes, {**graph.outputs, "x": graph.leaves("input")["x"]})
    program, state = lowered(graph, device), device.state(graph, {})
    first = program.run({"T": 1}, state)
    program.inputs["x"][0] = 3.0
    second = program.run({"T": 1}, state)
    with pytest.raises(BackendError, match="the program has run again"):
        first["y"]
    np.testing.assert_array_equal(second["y"], np.full((1, 1 << 15), 7.0))
    program.run({"T": 1}, state)
    np.testing.assert_array_equal(second["y"], np.full((1, 1 << 15), 7.0))


def test_a_step_is_fed_by_the_one_before(device: GpuDevice) -> None:
    """What was begun is read later; what the host has written to the input in the meantime does not count."""
    program, state = lowered(chain_of(6), device), device.state(chain_of(6), {})
    x = numbers(2, 6)
    program.inputs["x"][:2] = x
    assert program.runs_ahead
    first = program.begin({"T": 2}, state, {}, ["y"])
    program.inputs["x"][:2] = 77.0
    second = program.begin({"T": 2}, state, {"x": "y"}, ["y"])
    program.begin({"T": 2}, state, {"x": "y"}, ["y"])
    np.testing.assert_allclose(second()["y"], 4 * x + 3, rtol=1e-6)
    np.testing.assert_allclose(first()["y"], 2 * x + 1, rtol=1e-6)
    np.testing.assert_array_equal(program.run({"T": 2}, state)["y"], np.full((2, 6), 155.0))


def test_steps_that_nobody_reads_do_not_pile_up(device: GpuDevice, driver: PlainDriver) -> None:
    program, state, waited = lowered(chain_of(6), device), device.state(chain_of(6), {}), []
    driver.wait = lambda: waited.append(0)  # type: ignore[method-assign]
    for _ in range(3):
        made = program.run({"T": 2}, state)
    assert len(waited) == 2
    made["y"]
    program.run({"T": 2}, state)
    assert len(waited) == 2


def test_weights_larger_than_a_binding_are_cut_into_shards() -> None:
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
    assert lowered(graph, device, {"w": numbers(2, 512)}).fallbacks == [graph.outputs["y"]]
    assert (
        device.refuses(graph.outputs["y"]) == "the kernel some_rows wants 2048 bytes of `w`, Python has 1024"
    )


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


def memory_of_rows(in_numpy: bool) -> Graph:
    """Rows are put into a state and read again; twice of each comes out by a kernel, or silu by NumPy."""
    g = Builder()
    state = g.state("seen", F32, (Symbol("C", 99), 4))
    ids = g.input("ids", I32, (T,))
    held = g.rows(g.call(set_rows, state, g.input("x", F32, (T, 4)), ids), ids)
    return g.finish(y=g.silu(held) if in_numpy else g.scale(held, 2.0, 0.0))


@pytest.mark.parametrize("in_numpy", [False, True])
def test_sessions_take_turns(device: GpuDevice, in_numpy: bool) -> None:
    graph, kept = memory_of_rows(in_numpy), {"C": 8}
    program = lowered(graph, device)
    states = [device.state(graph, kept) for _ in range(2)]
    wanted = [np.zeros((8, 4), np.float32) for _ in states]
    random = np.random.default_rng(1)
    for step in range(6):
        which, count = step % 2, 1 + step % 3
        x, ids = random.standard_normal((count, 4), np.float32), random.permutation(8)[:count]
        program.inputs["x"][:count], program.inputs["ids"][:count] = x, ids
        if step == 2:  # as a session that is restored
            states[0].array("seen")[...] = wanted[0][...] = 7.0
        got = program.run({"T": count} | kept, states[which])["y"]
        wanted[which][ids] = x
        want = x * 2 if not in_numpy else x / (1 + np.exp(-x))
        np.testing.assert_allclose(got, want, rtol=1e-5)
        for state, array in zip(states, wanted, strict=True):
            np.testing.assert_array_equal(state.array("seen"), array)
    with pytest.raises(BackendError, match="made for another graph"):
        program.run({"T": 1, "C": 8}, device.state(chain(), {}))


def test_what_does_not_fit_is_told() -> None:
    device = GpuDevice(small(max_binding_bytes=1024, max_buffer_bytes=2048))
    with pytest.raises(BackendError, match=r"state seen: 1040 bytes.*one binding of Python holds 1024"):
        device.state(memory_of_rows(False), {"C": 65})
    with pytest.raises(BackendError, match=r"one buffer of Python holds 2048: give a smaller n_batch"):
        lowered(chain_of(2048), device)


def test_after_no_room_for_weights_the_device_can_be_used(device: GpuDevice, driver: PlainDriver) -> None:
    """The second of two weights does not fit; what was made for the program is given back."""
    g, w = Builder(), {"v": numbers(8, 16), "w": numbers(4, 8)}
    x = g.input("x", F32, (T, 16))
    y = g.mul_mat(g.weight("w", F32, (4, 8)), g.mul_mat(g.weight("v", F32, (8, 16)), x))
    graph, taken = g.finish(y=y), []
    make = driver.buffer

    def buffer(n_bytes: int, label: str) -> Buffer:
        if label == "w" and "w" not in taken:
            taken.append("w")
            raise BackendError("w: no room")
        return make(n_bytes, label)

    driver.buffer = buffer  # type: ignore[method-assign]
    with pytest.raises(BackendError, match="no room"):
        lowered(graph, device, w)
    program = lowered(graph, device, w)
    program.inputs["x"][:3] = numbers(3, 16)
    made = program.run({"T": 3}, device.state(graph, {}))["y"]
    np.testing.assert_allclose(made, numbers(3, 16) @ w["v"].T @ w["w"].T, rtol=1e-4, atol=1e-5)


def test_a_closed_device_runs_nothing(device: GpuDevice) -> None:
    program, state = lowered(chain(), device), device.state(chain(), {})
    device.close()
    with pytest.raises(BackendError, match="closed"):
        program.run({"T": 1}, state)


def test_steps_are_timed(device: GpuDevice) -> None:
    program, state = lowered(chain(), device), device.state(chain(), {})
    found: list[StepTime] = []
    program.time_steps(lambda dims, times: found.extend(times()))
    before = time.perf_counter()
    program.run({"T": 2}, state)
    after = time.perf_counter()
    assert [step.node.op.name for step in found] == ["scale", "silu", "scale"]
    ends = [step.begin_s[0] + step.work_s[0] for step in found]
    begins = [step.begin_s[0] for step in found]
    assert all(step.work_s[0] > 0 for step in found)
    assert before <= begins[0] <= ends[0] <= begins[1] <= ends[1] <= begins[2] <= ends[2] <= after
    program.time_steps(None)
    program.run({"T": 2}, state)
    assert len(found) == 3


def test_what_a_lowering_forgot_is_told(device: GpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    def lower(node: Node, context: DeviceView, field: str, gone: str) -> list[Dispatch]:
        (whole,) = lower_scale(node, context)
        kept = {name: value for name, value in getattr(whole, field).items() if name != gone}
        return [replace(whole, **{field: kept})]

    for field, gone in (("buffers", "x"), ("scalars", "n")):
        forgetful = partial(lower, field=field, gone=gone)
        made = replace(KERNELS["scale"], lower=forgetful)
        monkeypatch.setitem(lowering.table(), "scale", made)
        with pytest.raises(BackendError, match=rf"kernel scale_rows.*missing \['{gone}'\]"):
            lowered(chain(), device)
    monkeypatch.setitem(lowering.table(), "scale", GpuLowering(("scale",), lower_scale))
    with pytest.raises(
        BackendError, match=r"scale: GpuWorkspace\(.*, but its lowering asks for no workspace"
    ):
        lowered(chain(), device)
