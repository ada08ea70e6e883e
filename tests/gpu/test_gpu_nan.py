"""A NaN stays one on drivers that take every float for a number: comparisons and max do not see it there.

Vulkan and WGSL allow that, and drivers of graphics cards do it; those of processors, which tests run on, keep
to IEEE 754. So the kernels run in the emulator, which can do either.
"""

from __future__ import annotations

import numpy as np
import pytest
from graphml_gpu.backend import make_backend
from graphml_gpu.device import GpuDevice
from graphml_gpu.plain_driver import PlainDriver

from graphml.backend import no_progress
from graphml.conformance import suite
from graphml.ir.dtype import F32
from graphml.ir.language import Builder
from graphml.passes.fusions.swiglu_oai import swiglu_oai
from graphml.passes.plan import plan_memory

DECIDING = "clamp,geglu_erf,gelu_erf,l2_norm,reglu,relu,softcap,softmax,softplus,tanh"
"""Ops whose kernels compare floats."""


@pytest.mark.parametrize("holds", [True, False])
def test_nan_stays_where_floats_are_taken_for_numbers(holds: bool) -> None:
    backend = make_backend("plain", lambda: PlainDriver(nan_holds=holds), unavailable=lambda: None)
    every = suite.chosen(backend, DECIDING)
    assert ",".join(dict.fromkeys(case.op.name for case in every)) == DECIDING
    # Samples of an op differ in their shapes, and compare in the same places of its kernel.
    some = [case for case in every if case.number in (1, 2) and case.inplace < 0]
    verdicts = suite.check(backend, backend.open(None), some, sizes=(suite.ONE,))
    assert not [str(verdict) for verdict in verdicts if verdict.failed]


@pytest.mark.parametrize("holds", [True, False, None])
def test_nan_stays_in_gates_with_limits(holds: bool | None) -> None:
    """The suite fills their operands with numbers beyond the limits, and so with no NaN."""
    g, device = Builder(), GpuDevice(PlainDriver(nan_holds=holds))
    graph = g.finish(y=g.call(swiglu_oai, g.input("gate", F32, (4,)), g.input("up", F32, (4,))))
    program = device.lower(graph, plan_memory(graph, device), {}, no_progress)
    program.inputs["gate"][...] = [np.nan, 1.0, 9.0, -9.0]
    program.inputs["up"][...] = [1.0, np.nan, 9.0, np.nan]
    made = program.run({}, device.state(graph, {}))["y"]
    assert np.isnan(made).tolist() == [True, True, False, True]
