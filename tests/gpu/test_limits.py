"""Devices with few bindings, small workgroups and little shared memory: what they cannot run they never get.

On lavapipe wgpu itself holds to the limits of WebGPU; PoCL and the emulator are told that they have less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from graphml_gpu.backend import make_backend
from graphml_gpu.device import GpuDevice
from graphml_gpu.driver import Bound, Driver, Facts
from graphml_gpu.limits import exceeds
from graphml_gpu.plain_driver import FACTS, PlainDriver
from graphml_gpu.program import GpuProgram

from graphml.compiler.options import DEFAULT, CompileOptions
from graphml.conformance import suite
from graphml.conformance.trial import Trial, TrialRun
from graphml.errors import BackendError
from graphml.ir.op import Array
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor, read_architecture
from graphml.weights import open_model
from tests.golden import nmse
from tests.gpu.cover import GRAPHICS, PLAIN, SUBGROUPS, kernels
from tests.gpu.language.devices import open_driver
from tests.gpu.on_devices import pretending
from tests.gpu.test_gpu_model import after
from tests.stories import STORIES

GUARANTEED = {
    "max-storage-buffers-per-shader-stage": 8,
    "max-storage-buffer-binding-size": 1 << 27,
    "max-buffer-size": 1 << 28,
    "max-compute-workgroup-storage-size": 16384,
    "max-compute-invocations-per-workgroup": 256,
    "max-compute-workgroup-size-x": 256,
    "max-compute-workgroup-size-y": 256,
    "max-compute-workgroup-size-z": 64,
    "max-compute-workgroups-per-dimension": 65535,
    "min-storage-buffer-offset-alignment": 256,
    "min-uniform-buffer-offset-alignment": 256,
}
"""What WebGPU promises of every adapter (https://www.w3.org/TR/webgpu/#limits, defaults)."""
CROWDED = ("gated_delta_net", "linear_attention", "relative_attention", "selected_attention", "ssm_scan")
"""Ops of kernels with more than eight buffers."""


@cache
def least(name: str) -> Driver:
    """A driver whose device has what WebGPU guarantees, and no more."""
    if name == "python":
        return PlainDriver()
    if name == "opencl":
        driver = open_driver(name)
        keys = ("max_bindings", "max_group", "max_group_sizes", "max_groups", "shared_bytes")
        return pretending(driver, replace(driver.facts, **{key: getattr(FACTS, key) for key in keys}))
    open_driver(name)  # or the test is skipped
    from graphml_wgpu.driver import WgpuDriver

    return WgpuDriver(limits=GUARANTEED)


def test_wgpu_is_held_to_the_limits() -> None:
    facts = least("wgpu").facts
    same = ("max_bindings", "max_binding_bytes", "max_group", "max_group_sizes", "max_groups", "shared_bytes")
    assert all(getattr(facts, name) == getattr(FACTS, name) for name in same)
    many = next(k for k in kernels(GRAPHICS) if len(k.buffers) > 8)
    buffer = least("wgpu").buffer(1024, "any")
    with pytest.raises(BackendError, match="limit is 8"):
        least("wgpu").record([Bound(many, ((buffer, 0, 512),) * len(many.buffers), (buffer, 512, 512))])


@pytest.mark.parametrize("facts", [GRAPHICS, SUBGROUPS["of 32"]], ids=["plain", "subgroups"])
def test_all_but_bindings_are_no_more_than_guaranteed(facts: Facts) -> None:
    """So that nothing is refused on any adapter; who has too many bindings shares them."""
    over = [exceeds(one, replace(FACTS, max_bindings=99)) for one in kernels(facts)]
    assert [reason for reason in over if reason is not None] == []


@pytest.mark.parametrize("name", ["python", "wgpu", "opencl"])
@pytest.mark.parametrize("op", CROWDED)
def test_kernels_of_many_buffers_share_bindings(op: str, name: str) -> None:
    device = GpuDevice(least(name))
    some = [case.at(2) for case in suite.chosen(PLAIN, op, ["f32"]) if case.inplace < 0]
    found = []
    for case in some[:1] if name == "python" else some:
        trial = Trial([case], PLAIN, device, "graphml", in_arena=False)
        assert trial.refused == [None]
        found += trial.run(TrialRun(2))
        program: Any = trial._program
        assert all(len(kernel.buffers) <= 8 for kernel in program.kernels)
    assert not [str(verdict) for verdict in found if verdict.failed]


def opened(driver: Driver, options: CompileOptions = DEFAULT) -> Executor:
    """Stories on a driver."""
    file = open_model(STORIES)
    made = read_architecture(file)
    backend = make_backend("tried", lambda: driver, unavailable=lambda: None)
    return Executor(file, *made, backend, GpuDevice(driver), 1, cache_dtype="f32", options=options)


def in_numpy(executor: Executor) -> set[str]:
    """Ops of nodes that no kernel runs."""
    program = executor.compiled(1, 1).program
    assert isinstance(program, GpuProgram)
    return {node.op.name for node in program.fallbacks}


@pytest.fixture(scope="module")
def wanted() -> Iterator[Array]:
    executor = open_executor(STORIES, LoadOptions("reference", 1, kv="f32", n_batch=1))
    yield after(executor, [1, 1, 1])
    executor.close()


@pytest.mark.parametrize("name", ["wgpu", "opencl"])
def test_a_model_needs_no_more_than_guaranteed(name: str, wanted: Array) -> None:
    executor = opened(least(name))
    assert in_numpy(executor) == set()
    assert nmse(after(executor, [1, 1, 1]), wanted) < 1e-9


@pytest.mark.parametrize(
    ("name", "limits", "refused"),
    [
        ("wgpu", {"max_bindings": 4}, set()),
        ("wgpu", {"max_bindings": 3}, {"attention"}),
        ("wgpu", {"max_groups": 4}, {"attention", "mul_mat"}),
        ("opencl", {"max_group": 64, "max_group_sizes": (64, 64, 64)}, {"attention", "sample_row", "top_k"}),
        ("opencl", {"shared_bytes": 1024}, {"attention", "sample_row"}),
        ("opencl", {"max_binding_bytes": 1 << 15}, {"attention"}),
    ],
)
def test_what_a_device_has_no_room_for_runs_in_numpy(
    name: str, limits: Mapping[str, Any], refused: set[str], wanted: Array
) -> None:
    driver = least(name)
    poor = pretending(driver, replace(driver.facts, **limits))
    executor = opened(poor)
    assert in_numpy(executor) == refused
    assert nmse(after(executor, [1, 1, 1]), wanted) < 1e-9
    if refused:
        with pytest.raises(BackendError, match=r"strict: .* wants .*, .* has "):
            opened(poor, CompileOptions(strict=True)).compiled(1, 1)
