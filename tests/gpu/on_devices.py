"""Graphs on every GPU device there is, and on the driver that runs kernels in Python, against NumPy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any, cast

import numpy as np
import pytest
from graphml_gpu.device import GpuDevice
from graphml_gpu.driver import Driver, Facts
from graphml_gpu.plain_driver import FACTS, PlainDriver

from graphml.backend import no_progress
from graphml.ir.graph import Graph
from graphml.ir.interpreter import interpret
from graphml.ir.op import Array
from graphml.loading import discovery
from graphml.passes.plan import plan_memory

DEVICES = ("python", "python with subgroups", "wgpu", "opencl")
REAL = DEVICES[2:]
WITHOUT_SUBGROUPS = "wgpu without subgroups"
OPTIMISING = "opencl as users run it"
"""With the optimiser of its compiler, which tests on "opencl" do without."""
SUBGROUPS = dataclasses.replace(FACTS, has_subgroups=True, subgroup_min=8, subgroup_max=8)
"""As on GPUs; those of processors are smaller."""
CARD = "python as a graphics card"
"""The kernels of graphics cards with the emulator's checks."""


@cache
def device(name: str) -> GpuDevice:
    """The device, opened once; the test is skipped where there is none."""
    if name == WITHOUT_SUBGROUPS:
        driver = device("wgpu").memory.driver
        return GpuDevice(pretending(driver, dataclasses.replace(driver.facts, has_subgroups=False)))
    if name == OPTIMISING:
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("GRAPHML_OPENCL_OPTIONS", raising=False)
            return _opened("opencl")
    if name not in REAL:
        plain = FACTS if name == "python" else SUBGROUPS
        return GpuDevice(PlainDriver(dataclasses.replace(plain, kind="discrete") if name == CARD else plain))
    return _opened(name)


def _opened(name: str) -> GpuDevice:
    backend = discovery.backend(name)
    reason = backend.unavailable()
    if reason is not None:
        pytest.skip(f"{name}: {reason}")
    opened = backend.open(None)
    assert isinstance(opened, GpuDevice)
    return opened


def run_both(
    graph: Graph, values: Mapping[str, Array], name: str, **dims: int
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The outputs on a device and in NumPy; no node may be left to NumPy on the device."""
    opened = device(name)
    weights = {leaf: values[leaf] for leaf in graph.leaves("weight")}
    program = opened.lower(graph, plan_memory(graph, opened), weights, no_progress)
    assert not program.fallbacks
    state = opened.state(graph, dims)
    for leaf in graph.leaves("state"):
        state.array(leaf)[...] = values[leaf]
    for leaf, array in program.inputs.items():
        array[tuple(map(slice, values[leaf].shape))] = values[leaf]
    made = {key: array.copy() for key, array in program.run(dims, state).items()}
    with np.errstate(all="ignore"):
        wanted = interpret(graph, {leaf: value.copy() for leaf, value in values.items()})
    return made, wanted


def nmse(got: Array, want: Array) -> float:
    """Where one has NaN or infinity the other must have the same; the rest is compared."""
    finite = np.isfinite(want)
    if got.shape != want.shape or not np.array_equal(got[~finite], want[~finite], equal_nan=True):
        return float("inf")
    error, wanted = (got[finite].astype(np.float64) - want[finite]), want[finite].astype(np.float64)
    return float((error**2).sum() / max((wanted**2).sum(), 1e-300))


class Pretending:
    """A driver that tells other facts than its own."""

    def __init__(self, driver: Driver, facts: Facts) -> None:
        self._driver, self.facts = driver, facts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)


def pretending(driver: Driver, facts: Facts) -> Driver:
    """The driver as if its device were another one."""
    return cast(Driver, Pretending(driver, facts))
