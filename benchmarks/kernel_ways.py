"""One op in each way that a kernel can be written: a file for `graphml test-op`, whose figures are in docs.

    graphml test-op benchmarks/kernel_ways.py

`signed_square`, gain * x * |x|, by its function alone, by numba on the processor, and on GPUs in the kernel
language and as texts.
"""

import graphml_gpu.language as gpu
import numpy as np
from graphml_gpu.kernels.grid import element_number

from graphml.ops import ROWS, f32, op, sample


def signed(x, *, gain: float = 1.0):
    """gain * x * |x|."""
    return gain * x * np.abs(x)


def declared(name):
    """The op under a name."""
    samples = [sample(f32(ROWS, 64)), sample(f32(ROWS, 7), gain=0.5)]
    return op(shape=lambda x: x, samples=samples, inplace=["x"], name=name)(signed)


by_numpy, by_language, by_text = (declared(f"by_{way}") for way in ("numpy", "language", "text"))


@by_language.kernel("cpu", "numba")
def signed_rows(out, x, begin, end, gain):
    for row in range(begin, end):
        for i in range(x.shape[1]):
            out[row, i] = gain * x[row, i] * abs(x[row, i])


@by_language.kernel("wgpu", "opencl", groups="element")
def signed_elements(
    x: gpu.Read[gpu.f32], out: gpu.Write[gpu.f32], count: gpu.u32, gain: gpu.f32, *, GROUP: int = 64
) -> None:
    i = element_number()
    if i < count:
        out[i] = gain * x[i] * abs(x[i])


AS_TEXT = {"bindings": ("x", "out"), "scalars": ("count", "gain"), "workgroup": 64, "groups": "element"}
by_text.kernel("wgpu", **AS_TEXT)("""
struct Params { count: u32, gain: f32, x_at: u32, out_at: u32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(64)
fn by_text(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(num_workgroups) num_groups: vec3<u32>,
           @builtin(local_invocation_index) local_index: u32) {
    let i = (group_id.x + group_id.y * num_groups.x) * 64u + local_index;
    if (i < params.count) {
        let value = x[params.x_at + i];
        out[params.out_at + i] = params.gain * value * abs(value);
    }
}
""")
by_text.kernel("opencl", **AS_TEXT)("""
typedef struct { uint count; float gain; uint x_at; uint out_at; } Params;

__kernel void by_text(__global const float *x, __global float *out, __constant Params *params) {
    const uint i = (get_group_id(0) + get_group_id(1) * get_num_groups(0)) * 64 + get_local_id(0);
    if (i < params->count) {
        const float value = x[params->x_at + i];
        out[params->out_at + i] = params->gain * value * fabs(value);
    }
}
""")
