"""OpenCL as users run it: with the optimiser of its compiler, which most tests do without.

What Intel's for processors made wrong code of is here in small; what is right without its optimiser may not
be with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graphml_gpu.driver import Bound, Driver
from graphml_gpu.language import (
    Read,
    Specialised,
    Write,
    barrier,
    exp,
    f32,
    floor,
    kernel,
    local_id,
    shared_array,
    u32,
)
from graphml_gpu.language.text_kernels import OPENCL_C, TextDeclaration, TextKernel

from graphml.ir.dtype import F32
from graphml.ir.language import Builder
from graphml.ir.op import Array, Op
from graphml.ir.ops.elementwise import maximum, minimum
from tests.gpu.on_devices import OPTIMISING, device, nmse, run_both
from tests.gpu.test_gpu_attention import LIMIT, Case

GROUP = 64
TURNS = 3
TOLERANCE = 1e-5


@kernel
def sums_of_signs(x: Read[f32], out: Write[f32], turns: u32, factor: f32, *, GROUP: int = 64) -> None:
    """What is worked out of -x in a loop of barriers, plus a neighbour. x, out [GROUP]."""
    me = local_id(0)
    held, total = shared_array(f32, GROUP), f32(0.0)
    value = x[me]
    for _i in range(turns):
        held[me] = value
        barrier()
        total += floor(-value) + (factor - value * factor) + exp(-value) + held[(me + 1) % GROUP]
        barrier()
    out[me] = total


TEXT = """
typedef struct { uint turns; float factor; uint x_at; uint out_at; } Params;

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void signs(__global const float *x, __global float *out, __constant Params *params) {
    __local float held[64];
    x += params->x_at;
    out += params->out_at;
    const uint me = get_local_id(0);
    const float value = x[me];
    float total = 0.0f;
    for (uint i = 0; i < params->turns; i += 1) {
        held[me] = value;
        barrier(CLK_LOCAL_MEM_FENCE);
        total += floor(-value) + (params->factor - value * params->factor) + exp(-value);
        total += held[(me + 1) % 64];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    out[me] = total;
}
"""


def own_text() -> TextKernel:
    declared = TextDeclaration("signs", ("x", "out"), ("turns", "factor"), (GROUP, 1, 1), frozenset({"out"}))
    return TextKernel(TEXT, OPENCL_C, declared)


def run(driver: Driver, made: Specialised, x: Array, factor: float) -> Array:
    values, words = driver.buffer(2 * x.nbytes, "values"), driver.buffer(256, "words")
    driver.write(values, 0, x)
    driver.write(words, 0, made.words({"turns": TURNS, "factor": factor}))
    ranges = ((values, 0, x.nbytes), (values, x.nbytes, x.nbytes))
    driver.submit(driver.record([Bound(made, ranges, (words, 0, 4 * len(made.scalars)))]), [(1, 1, 1)])
    return driver.read(list(ranges[1:]))[0].view(np.float32)


@pytest.mark.parametrize("kernel_of", [lambda: sums_of_signs, own_text], ids=["language", "text"])
def test_what_an_invocation_negates_is_its_own_behind_barriers(kernel_of: Callable[[], Any]) -> None:
    driver = device(OPTIMISING).memory.driver
    x, factor = np.linspace(0.1, 7.3, GROUP, dtype=np.float32), np.float32(1.25)
    made = run(driver, kernel_of().specialise(driver.facts.features()), x, float(factor))
    wanted = TURNS * (np.floor(-x) + (factor - x * factor) + np.exp(-x) + np.roll(x, -1))
    np.testing.assert_allclose(made, wanted, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("n_head", [2, 4])
def test_heads_have_biases_of_their_own(n_head: int) -> None:
    case = Case((0, 1, 2), (0, 0, 0), n_head=n_head, n_head_kv=1, max_bias=8.0)
    made, wanted = run_both(case.graph(1), case.values(1), OPTIMISING, T=3)
    assert nmse(made["y"], wanted["y"]) <= LIMIT


@pytest.mark.parametrize("op", [minimum, maximum], ids=lambda op: op.name)
def test_some_elements_and_one_value_for_all(op: Op) -> None:
    """Less elements than a workgroup has invocations, of which a vector has none."""
    g, x = Builder(), np.array([1.0, np.nan, -2.0, np.inf, 0.5], np.float32)
    graph = g.finish(y=g.call(op, g.input("x", F32, (5,)), g.input("one", F32, (1,))))
    for one in (0.75, np.nan):
        made, wanted = run_both(graph, {"x": x, "one": np.array([one], np.float32)}, OPTIMISING)
        np.testing.assert_array_equal(made["y"], wanted["y"])
