"""Ops of one's own for tests, and their kernels for GPUs in all forms.

Softpick (arXiv:2504.20966) by rows, a Hadamard rotation by elements or whole rows in shared memory, and an op
of several operands, results and attributes.
"""

from __future__ import annotations

import graphml_gpu.language as gpu
import numpy as np
from graphml_gpu.dispatch import rows
from graphml_gpu.kernels.grid import element_number, group_number
from graphml_gpu.language import Read, Write

from graphml.ir.node import Node
from graphml.ir.op import Array, Type
from graphml.ir.ops.elementwise import mul
from graphml.ops import F16, I32, ROWS, OwnOp, f32, fused, op, sample

"""Of all ops that are declared here."""


def softpick() -> OwnOp:
    """The op, declared; to be forgotten."""

    @op(
        shape=lambda x: x,
        samples=[sample(f32(ROWS, 64)), sample(f32(ROWS, 7), eps=1e-3), sample(f32(ROWS, 3, 33))],
        inplace=["x"],
    )
    def softpick(x: Array, *, eps: float = 1e-6) -> Array:
        x = x.astype(np.float64)
        top = np.maximum(x.max(-1, keepdims=True), 0)
        e = np.exp(x - top) - np.exp(-top)
        return np.maximum(e, 0) / (np.abs(e).sum(-1, keepdims=True) + eps * np.exp(-top))  # type: ignore[no-any-return]

    return softpick


def softpick_mul(plain: OwnOp) -> OwnOp:
    """softpick(x) * y as one op; to be forgotten."""

    @fused(find=lambda x, y: mul(plain(x), y), samples=[sample(f32(ROWS, 64), f32(ROWS, 64))])
    def softpick_mul(g: object, x: Node, y: Node, *, eps: float = 1e-6) -> Node:
        return g.mul(g.softpick(x, eps=eps), y)  # type: ignore[attr-defined, no-any-return]

    return softpick_mul


def hadamard() -> OwnOp:
    """A rotation of rows of a power of two; to be forgotten."""

    @op(shape=lambda x: x, samples=[sample(f32(ROWS, 64)), sample(f32(ROWS, 2)), sample(f32(ROWS, 3, 16))])
    def hadamard(x: Array) -> Array:
        i = np.arange(x.shape[-1])
        bits = np.array([[(a & b).bit_count() for b in i.tolist()] for a in i.tolist()])
        return x @ (1.0 - 2.0 * (bits % 2)) / np.sqrt(len(i))  # type: ignore[no-any-return]

    return hadamard


def mixed() -> OwnOp:
    """All kinds of names: two results, an operand of halves, whole numbers, switches; to be forgotten."""

    def shape(x: Type, halves: Type, at: Type) -> tuple[Type, Type]:
        return x, Type(I32, x.shape)

    @op(
        shape=shape,
        samples=[sample(f32(ROWS, 6), Type(F16, (6,)), Type(I32, (ROWS, 1)), shift=-3, mode="twice")],
        dtypes={"halves": F16, "at": I32},
    )
    def mixed(
        x: Array, halves: Array, at: Array, *, shift: int, flip: bool = True, mode: str = "once"
    ) -> tuple[Array, Array]:
        made = x * halves.astype(np.float32) * (2 if mode == "twice" else 1) * (-1 if flip else 1)
        return made, np.broadcast_to(at + shift, x.shape).astype(np.int32)

    return mixed


def softpick_rows(
    x: Read[gpu.f32], out: Write[gpu.f32], rows: gpu.u32, n: gpu.u32, eps: gpu.f32, *, GROUP: int = 64
) -> None:
    """A workgroup a row."""
    row = group_number()
    if row < rows:
        start = row * n
        top = gpu.f32(0.0)
        for i in range(gpu.local_id(0), n, GROUP):
            top = max(top, x[start + i])
        top = gpu.group_max(top)
        low = gpu.exp(-top)
        total = gpu.f32(0.0)
        for i in range(gpu.local_id(0), n, GROUP):
            total += abs(gpu.exp(x[start + i] - top) - low)
        total = gpu.group_sum(total) + eps * low
        for i in range(gpu.local_id(0), n, GROUP):
            e = gpu.exp(x[start + i] - top) - low
            out[start + i] = gpu.select(gpu.isnan(total), total, gpu.select(e > 0.0, e, 0.0) / total)


def softpick_mul_rows(
    x: Read[gpu.f32], y: Read[gpu.f32], out: Write[gpu.f32], x_rows: gpu.u32, y_n: gpu.u32, eps: gpu.f32
) -> None:
    """An invocation a row."""
    row = group_number()
    if row < x_rows:
        top = gpu.f32(0.0)
        for i in range(y_n):
            top = max(top, x[row * y_n + i])
        low = gpu.exp(-top)
        total = eps * low
        for i in range(y_n):
            total += abs(gpu.exp(x[row * y_n + i] - top) - low)
        for i in range(y_n):
            e = gpu.exp(x[row * y_n + i] - top) - low
            out[row * y_n + i] = gpu.select(e > 0.0, e, 0.0) / total * y[row * y_n + i]


def hadamard_rows(x: Read[gpu.f32], out: Write[gpu.f32], rows: gpu.u32, *, N: int, GROUP: int = 32) -> None:
    """A workgroup a row, which is in shared memory."""
    row = group_number()
    held = gpu.shared_array(gpu.f32, N)
    if row < rows:
        for i in range(gpu.local_id(0), N, GROUP):
            held[i] = x[row * N + i]
        gpu.barrier()
        for i in range(gpu.local_id(0), N, GROUP):
            total = gpu.f32(0.0)
            for j in range(N):
                total += gpu.select(gpu.count_bits(i & j) % 2 == 1, -held[j], held[j])
            out[row * N + i] = total / gpu.sqrt(gpu.f32(N))


def mixed_elements(
    x: Read[gpu.f32], halves: Read[gpu.u32], at: Read[gpu.i32], out_0: Write[gpu.f32], out_1: Write[gpu.i32],
    count: gpu.u32, n: gpu.u32, flip: gpu.u32, shift: gpu.i32, *, mode: str, GROUP: int = 32,
) -> None:  # fmt: skip
    """An invocation an element."""
    i = element_number()
    if i < count:
        column = i % n
        half = (
            gpu.unpack_half2(halves[column // 2])[0]
            if column % 2 == 0
            else gpu.unpack_half2(halves[column // 2])[1]
        )
        value = x[i] * half
        if mode == "twice":
            value = value * 2.0
        out_0[i] = gpu.select(flip != 0, -value, value)
        out_1[i] = at[i // n] + shift


SOFTPICK = {"bindings": ("x", "out"), "scalars": ("rows", "n", "eps"), "groups": "row"}
"""How the texts of softpick are declared, but for the workgroup."""

SOFTPICK_WGSL = """// a binding like out, in a comment
struct Params { rows: u32, n: u32, eps: f32, x_at: u32, out_at: u32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(2) var<uniform> params: Params;
const GROUP = 32u;
var<workgroup> partial: array<f32, GROUP>;

@compute @workgroup_size(GROUP)
fn softpick(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(num_workgroups) num_groups: vec3<u32>,
            @builtin(local_invocation_index) local_index: u32) {
    let row = group_id.x + group_id.y * num_groups.x;
    if (row < params.rows) {
        let start = params.x_at + row * params.n;
        var top = 0.0f;
        for (var i = 0u; i < params.n; i += 1u) { top = max(top, x[start + i]); }
        let low = exp(-top);
        var total = 0.0f;
        for (var i = local_index; i < params.n; i += GROUP) { total += abs(exp(x[start + i] - top) - low); }
        partial[local_index] = total;
        workgroupBarrier();
        total = params.eps * low;
        for (var i = 0u; i < GROUP; i += 1u) { total += partial[i]; }
        for (var i = local_index; i < params.n; i += GROUP) {
            let e = exp(x[start + i] - top) - low;
            out[params.out_at + row * params.n + i] = select(max(e, 0.0f) / total, total, total != total);
        }
    }
}
"""
SOFTPICK_OPENCL = """
#define GROUP 1
typedef struct {
    uint rows, n; /* in this order */
    float eps;
    uint x_at, out_at;
} Params;

static float weight(float x, float top) { return exp(x - top) - exp(-top); }

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void softpick(__global const float *x, __global float *out, __constant Params *params) {
    const uint n = params->n, row = get_group_id(0) + get_group_id(1) * get_num_groups(0);
    if (row < params->rows) {
        x += params->x_at + row * n;
        out += params->out_at + row * n;
        float top = 0.0f, total = 0.0f;
        for (uint i = 0; i < n; i++) top = fmax(top, x[i]);
        for (uint i = 0; i < n; i++) total += fabs(weight(x[i], top));
        total += params->eps * exp(-top);
        for (uint i = 0; i < n; i++) out[i] = isnan(total) ? total : fmax(weight(x[i], top), 0.0f) / total;
    }
}
"""
HADAMARD = {"bindings": ("x", "out"), "scalars": ("count", "n"), "groups": "element", "workgroup": 32}
HADAMARD_WGSL = """
struct Params { count: u32, n: u32, x_at: u32, out_at: u32 }
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(32)
fn rotated(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
          @builtin(local_invocation_index) local_index: u32) {
    let i = (group.x + group.y * groups.x) * 32u + local_index;
    if (i < params.count) {
        let start = i / params.n * params.n;
        var total = 0.0f;
        for (var j = 0u; j < params.n; j += 1u) {
            let value = x[params.x_at + start + j];
            total += select(value, -value, countOneBits((i - start) & j) % 2u == 1u);
        }
        out[params.out_at + i] = total / sqrt(f32(params.n));
    }
}
"""
HADAMARD_OPENCL = """
typedef struct { uint count; uint n; uint x_at; uint out_at; } Params;

__kernel void rotated(__global const float *x, __global float *out, __constant Params *params) {
    const uint n = params->n;
    const uint i = (get_group_id(0) + get_group_id(1) * get_num_groups(0)) * 32 + get_local_id(0);
    if (i < params->count) {
        const uint start = i / n * n;
        float total = 0.0f;
        for (uint j = 0; j < n; j++) {
            const float value = x[params->x_at + start + j];
            total += popcount((i - start) & j) % 2 == 1 ? -value : value;
        }
        out[params->out_at + i] = total / sqrt((float)n);
    }
}
"""


def with_kernels_softpick(form: str) -> OwnOp:
    """Softpick with kernels for both backends; form: "language" or "text"."""
    made = softpick()
    if form == "language":
        made.kernel("wgpu", "opencl", groups="row")(softpick_rows)
    else:
        made.kernel("wgpu", workgroup=(32, 1, 1), **SOFTPICK)(SOFTPICK_WGSL)
        made.kernel("opencl", workgroup=1, **SOFTPICK)(SOFTPICK_OPENCL)
    return made


def is_power_of_two(node: Node) -> str | None:
    """Why it refuses a node."""
    n = node.shape[-1]
    return None if isinstance(n, int) and n & (n - 1) == 0 else f"rows of {n}: wanted a power of two"


def with_kernels_hadamard(form: str) -> OwnOp:
    """The same of the rotation."""
    made = hadamard()
    if form == "language":
        made.kernel("wgpu", "opencl", groups=lambda node: rows(node.shape[:-1]), refuses=is_power_of_two)(
            hadamard_rows
        )
    else:
        made.kernel("wgpu", entry="rotated", **HADAMARD)(HADAMARD_WGSL)
        made.kernel("opencl", entry="rotated", **HADAMARD)(HADAMARD_OPENCL)
    return made
