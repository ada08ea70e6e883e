"""Kernels of ops of one's own for GPUs: wrong declarations, refused nodes, texts that do not compile."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import graphml_gpu.language as gpu
import numpy as np
import pytest
from graphml_gpu.device import GpuDevice
from graphml_gpu.language import Read, Write
from graphml_gpu.language.opencl_header import read_opencl
from graphml_gpu.language.wgsl_header import read_wgsl
from graphml_gpu.node_support import GpuNodeSupport
from graphml_gpu.plain_driver import FACTS, PlainDriver

from graphml.backend import no_progress
from graphml.errors import BackendError
from graphml.ir.dtype import F32
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.shape import Symbol
from graphml.ops import ROWS, OwnOp, f32, forget, op, sample
from graphml.passes.plan import plan_memory
from tests.gpu import own_gpu_ops as own
from tests.gpu.on_devices import REAL, device, nmse, pretending, run_both


def node_of(made: OwnOp, n: int = 64, **attributes: Any) -> Node:
    g = Builder()
    node: Node = g.call(made, g.input("x", F32, (Symbol("T", 4), n)), **attributes)
    return node


def test_an_op_without_a_kernel_for_a_backend_is_refused() -> None:
    made = own.softpick()
    made.kernel("wgpu", groups="row")(own.softpick_rows)
    assert GpuNodeSupport("wgpu").refuses(node_of(made)) is None
    assert GpuNodeSupport("opencl").refuses(node_of(made)) == "no kernel for softpick"


def no_types(out, x, begin, end):  # type: ignore[no-untyped-def]
    """As for a processor."""


def not_written(x: Read[gpu.f32], rows: gpu.u32) -> None: ...


def written(x: Write[gpu.f32], out: Write[gpu.f32]) -> None: ...


def of_whole_numbers(x: Read[gpu.i32], out: Write[gpu.f32]) -> None: ...


def unknown_buffer(y: Read[gpu.f32], out: Write[gpu.f32]) -> None: ...


def unknown_scalar(x: Read[gpu.f32], out: Write[gpu.f32], length: gpu.u32) -> None: ...


def unfit_scalar(x: Read[gpu.f32], out: Write[gpu.f32], eps: gpu.u32) -> None: ...


def no_size(x: Read[gpu.f32], out: Write[gpu.f32], *, GROUP: int) -> None: ...


def unknown_constant(x: Read[gpu.f32], out: Write[gpu.f32], *, TILE: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "reason"),
    [
        (own.softpick_rows, {}, "groups: wanted \"row\", \"element\" or a function of the node; got None"),
        (own.softpick_rows, {"groups": "rows"}, "groups: wanted .*; got 'rows'"),
        (own.softpick_rows, {"groups": "row", "fastmath": True}, "no option 'fastmath'; wanted some"),
        (own.softpick_rows, {"groups": "row", "refuses": "never"}, "refuses: wanted a function of the node"),
        (7, {"groups": "row"}, "wanted a typed function .*, or a text .*; got 7"),
        (no_types, {"groups": "row"}, r"argument out: wanted a type, Read\[...\] or .*; got None"),
        (not_written, {"groups": "row"}, "does not write the result out"),
        (written, {"groups": "row"}, "x is written; wanted operands that are read"),
        (of_whole_numbers, {"groups": "row"}, "x has elements of i32; wanted f32 for values of f32"),
        (unknown_buffer, {"groups": "row"}, "no value is called 'y'; wanted some of x, out"),
        (unknown_scalar, {"groups": "row"}, "no scalar is called 'length'; .* rows, n, count, x_rows"),
        (unfit_scalar, {"groups": "row"}, "scalar eps is u32; wanted f32"),
        (no_size, {"groups": "row"}, "constant GROUP: wanted the size of the workgroup as its default"),
        (unknown_constant, {"groups": "row"}, "constant TILE: wanted a default, or one of GROUP"),
    ],
)  # fmt: skip
def test_a_wrong_declaration_is_an_error(function: Any, options: dict[str, Any], reason: str) -> None:
    made = own.softpick()
    made.kernel("wgpu", "opencl", **options)(function)
    place = r"op 'softpick': its kernel for wgpu \(.*\.py:\d+\): "
    with pytest.raises(BackendError, match=f"(?s){place}.*{reason}"):
        GpuNodeSupport("wgpu").refuses(node_of(made))


TEXTS = {"wgpu": own.SOFTPICK_WGSL, "opencl": own.SOFTPICK_OPENCL}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"groups": None}, "groups: wanted"),
        ({"bindings": None}, "bindings: wanted the names of its bindings"),
        ({"bindings": "x"}, "bindings: wanted the names of its bindings; got 'x'"),
        ({"bindings": ("x", "weight", "out")}, "no value is called 'weight'; wanted some of x, out"),
        ({"bindings": ("out",)}, r"it uses x, which is not among the bindings \('out',\)"),
        ({"bindings": ("out", "x")}, r"its bindings are \('x', 'out'\); wanted those that were declared"),
        ({"bindings": ("x", "x", "out")}, "bindings: a name is there twice"),
        ({"scalars": ("rows", "n", "epsilon")}, "no scalar is called 'epsilon'; wanted some of .*eps"),
        ({"scalars": ("rows", "n")}, "has rows, n, eps, x_at, out_at; wanted rows, n, x_at"),
        ({"scalars": ("rows", "eps", "n")}, "the struct of the scalars has"),
        ({"workgroup": None}, "workgroup: wanted its size"),
        ({"workgroup": (8, 0)}, "workgroup: wanted its size"),
        ({"workgroup": 128}, r"its workgroup is \(\d+, 1, 1\); wanted .* declared: \(128, 1, 1\)"),
        ({"entry": "softmax"}, "wanted the entry point .*softmax.*; there is none"),
        ({"shared_bytes": -1}, "shared_bytes: wanted a number of bytes"),
        ({"shared_bytes": 64}, "it has [0-9]+ bytes of shared memory; declared: 64"),
        ({"writes": ("out",)}, "no option 'writes'; wanted some of bindings, scalars, workgroup"),
    ],
)  # fmt: skip
def test_a_wrong_declaration_of_a_text_is_an_error(name: str, options: dict[str, Any], reason: str) -> None:
    made = own.softpick()
    usual = {**own.SOFTPICK, "workgroup": 32 if name == "wgpu" else 1}
    given = {key: value for key, value in {**usual, **options}.items() if value is not None}
    made.kernel(name, **given)(TEXTS[name])
    with pytest.raises(
        BackendError, match=rf"(?s)op 'softpick': its kernel for {name} \(.*\.py:\d+\).*{reason}"
    ):
        GpuNodeSupport(name).refuses(node_of(made))


@pytest.mark.parametrize(
    ("name", "old", "new", "reason"),
    [
        ("wgpu", "read_write> out", "read> out", "out is declared as one that is only read"),
        ("wgpu", "x: array<f32>", "x: array<i32>", "x has elements of i32; wanted f32"),
        ("wgpu", "x: array<f32>", "x: array<atomic<u32>>", "line 3 of the text: binding x: wanted an array"),
        ("wgpu", "eps: f32", "eps: u32", "scalar eps is u32; wanted f32"),
        ("wgpu", "eps: f32", "eps: vec2<f32>", "line 2 .*: field eps of Params: wanted f32, i32, u32"),
        ("wgpu", "@binding(1)", "@binding(4)", r"wanted bindings 0, 1, .*; got \[0, 2, 4\]"),
        ("wgpu", "@group(0) @binding(1)", "@group(1) @binding(1)", r"out: wanted @group\(0\)"),
        ("wgpu", "var total", "var out = 1.0f; var total", "line 18 .*: out is declared where x is used"),
        ("wgpu", "@workgroup_size(GROUP)", "@workgroup_size(TILE)", "line 9 of the text: wanted a work"),
        ("opencl", "__global float *out", "__global const float *out", "only read"),
        ("opencl", "const float *x,", "const int *x,", "x has elements of i32; wanted f32"),
        ("opencl", "const float *x,", "const char *x,", "argument x: wanted a pointer"),
        ("opencl", "float eps;", "double eps;", "eps of Params: wanted uint, int or float"),
        ("opencl", "__constant Params", "__global Params", "params: wanted the struct of the scalars"),
        ("opencl", "} Params;", "} Others;", "wanted a struct of the scalars called Params"),
        ("opencl", "Params *params)", "Params *params, uint n)", "wanted pointers as arguments: .*; got"),
    ],
)  # fmt: skip
def test_a_text_that_is_not_as_declared_is_an_error(name: str, old: str, new: str, reason: str) -> None:
    made = own.softpick()
    assert TEXTS[name].count(old) == 1
    made.kernel(name, workgroup=32 if name == "wgpu" else 1, **own.SOFTPICK)(TEXTS[name].replace(old, new))
    with pytest.raises(BackendError, match=f"(?s)op 'softpick'.*{reason}"):
        GpuNodeSupport(name).refuses(node_of(made))


def shifted() -> OwnOp:
    @op(shape=lambda x: x, samples=[sample(f32(ROWS, 8), by=2)], inplace=["x"])
    def shifted(x: Array, *, by: int, name_of: str = "") -> Array:
        return x + by

    return shifted


def shifted_quads(x: Read[gpu.f32x4], out: Write[gpu.f32x4], count: gpu.u32, by: gpu.u32) -> None: ...


def shifted_to_quads(x: Read[gpu.f32], out: Write[gpu.f32x4], by: gpu.i32) -> None: ...


def shifted_by_a_text(x: Read[gpu.f32], out: Write[gpu.f32], name_of: gpu.u32) -> None: ...


@pytest.mark.parametrize(
    ("kernel", "n", "by", "reason"),
    [
        (shifted_quads, 8, 2, None),
        (shifted_quads, 6, 2, "has x of f32x4: its rows are no multiple of 4"),
        (shifted_quads, 8, -1, "its attribute by = -1 is no u32"),
        (shifted_to_quads, 8, 1 << 31, "its attribute by = 2147483648 is no i32"),
        (shifted_to_quads, 8, 2, "x and out may have the same memory, and are buffers of different elements"),
    ],
)
def test_a_node_that_a_kernel_cannot_run_is_refused(kernel: Any, n: int, by: int, reason: str | None) -> None:
    made = shifted()
    made.kernel("wgpu", groups="element")(kernel)
    found = GpuNodeSupport("wgpu").refuses(node_of(made, n, by=by))
    assert found == reason or (found is not None and reason is not None and reason in found)


def test_an_attribute_that_is_no_number_is_no_scalar() -> None:
    made = shifted()
    made.kernel("wgpu", groups="element")(shifted_by_a_text)
    with pytest.raises(BackendError, match="the attribute name_of is no number, so it is no scalar"):
        GpuNodeSupport("wgpu").refuses(node_of(made, by=1))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"groups": lambda node: "many"}, r"groups: wanted .*; its function returned 'many'"),
        ({"groups": lambda node: -1}, "groups: wanted a whole number, .*, none below 1; its .* returned -1"),
        ({"groups": lambda node: (0, 1, 1)}, r"groups: wanted .*none below 1; .* returned \(0, 1, 1\)"),
        (
            {"groups": lambda node: lambda dims: "x"},
            "groups: wanted three .*dims returned 'x', of {'T': 4}",
        ),
        ({"groups": lambda node: lambda dims: 1 // 0}, "groups: its function of dims raised ZeroDivisionErr"),
        ({"groups": lambda node: node.width}, r"groups: its function raised AttributeError: .*width"),
        ({"groups": "row", "refuses": lambda node: 1 // 0}, "refuses: its function raised ZeroDivisionError"),
        ({"groups": "row", "refuses": lambda node: False}, "refuses: wanted a reason or None; .* False"),
    ],
)
def test_what_the_functions_of_an_author_do_wrong_is_an_error(options: dict[str, Any], reason: str) -> None:
    made = own.softpick()
    made.kernel("wgpu", **options)(own.softpick_rows)
    with pytest.raises(BackendError, match=rf"op 'softpick': its kernel \(.*\.py:\d+\): {reason}"):
        device("python").refuses(node_of(made))


def softpick_of_32(x: Read[gpu.f32], out: Write[gpu.f32], rows: gpu.u32, *, GROUP: int = 32) -> None:
    """It has the shared memory and workgroup of the text."""
    held = gpu.shared_array(gpu.f32, GROUP)
    held[gpu.local_id(0)] = x[gpu.group_id(0)]
    gpu.barrier()
    out[gpu.group_id(0)] = held[0]


@pytest.mark.parametrize(
    ("less", "reason"),
    [
        ({"max_group": 16}, "wants 32 invocations of a workgroup, .* has 16"),
        ({"max_group_sizes": (16, 16, 16)}, "wants 32 invocations along x, .* has 16"),
        ({"shared_bytes": 64}, "wants 128 bytes of shared memory, .* has 64"),
        ({"max_bindings": 1}, "wants 2 bindings, .* has 1"),
        ({"max_groups": 2}, "wants 4 workgroups along x, .* has 2"),
        ({"max_binding_bytes": 256}, "wants 1024 bytes of `x`, .* has 256"),
    ],
)
@pytest.mark.parametrize("form", ["language", "text"])
def test_what_a_device_has_no_room_for_is_refused(form: str, less: dict[str, Any], reason: str) -> None:
    made = own.softpick()
    if form == "text":
        made.kernel("wgpu", workgroup=32, **own.SOFTPICK)(own.SOFTPICK_WGSL)
    else:
        made.kernel("wgpu", groups="row")(softpick_of_32)
    small = GpuDevice(PlainDriver(dataclasses.replace(FACTS, **less)))
    found = small.refuses(node_of(made))
    assert found is not None
    assert re.search(reason, found)


@pytest.mark.parametrize(
    ("name", "old", "new", "n_bytes"),
    [
        ("wgpu", "array<f32, GROUP>", "array<array<vec3<f32>, 4>, GROUP>", 2048),
        ("wgpu", "array<f32, GROUP>", "array<atomic<u32>, 3 * GROUP>", 384),
        ("wgpu", "array<f32, GROUP>", "array<vec2h, 8u>;\nvar<workgroup> other: vec4f", 48),
        ("wgpu", "array<f32, GROUP>", "array<Params, 2>", None),
        ("wgpu", "array<f32, GROUP>", "array<f32, GROUP + 1>", None),
        ("opencl", "float top", "__local float4 a[GROUP * 3][2], b; __local uchar *c; float top", 112),
        ("opencl", "float top", "local volatile int a[sizeof(Params)]; float top", None),
        ("opencl", "float top", "__local Params a; float top", None),
        ("opencl", "static float", "void f(__local int *a) { __local int b[3]; }\nstatic float", 12),
    ],
)
def test_the_shared_memory_of_a_text(name: str, old: str, new: str, n_bytes: int | None) -> None:
    text = TEXTS[name].replace(old, new, 1) if name == "wgpu" else new.join(TEXTS[name].rsplit(old, 1))
    read = {"wgpu": read_wgsl, "opencl": read_opencl}[name]
    assert read(text, "softpick").shared_bytes == n_bytes
    if n_bytes is None:
        made = own.softpick()
        made.kernel(name, workgroup=32 if name == "wgpu" else 1, **own.SOFTPICK)(text)
        with pytest.raises(BackendError, match="wanted the option shared_bytes"):
            GpuNodeSupport(name).refuses(node_of(made))


@pytest.mark.parametrize("name", REAL)
def test_what_is_refused_runs_in_numpy(name: str) -> None:
    own.with_kernels_hadamard("language")
    own.with_kernels_softpick("text")
    g = Builder()
    x = g.input("x", F32, (Symbol("T", 3), 6))
    graph = g.finish(y=g.hadamard(g.softpick(x)))
    driver = device(name).memory.driver
    opened = GpuDevice(
        pretending(driver, dataclasses.replace(driver.facts, has_subgroups=False, max_bindings=1))
    )
    program = opened.lower(graph, plan_memory(graph, opened), {}, no_progress)
    assert [node.op.name for node in program.fallbacks] == ["softpick", "hadamard"]
    program.inputs["x"][...] = 1
    found = program.run({"T": 3}, opened.state(graph, {}))["y"]
    assert found.shape == (3, 6)


@pytest.mark.parametrize("name", REAL)
def test_a_text_that_does_not_compile_is_an_error_with_its_line(name: str) -> None:
    """With the op, the compiler's message and the numbered text; the device goes on."""
    made = own.softpick()
    old, new = {
        "wgpu": ("let low = exp(", "let low = expo("),
        "opencl": ("top = fmax(", "top = nowhere + fmax("),
    }[name]
    bad = TEXTS[name].replace(old, new)
    assert bad != TEXTS[name]
    made.kernel(name, workgroup=32 if name == "wgpu" else 1, **own.SOFTPICK)(bad)
    g = Builder()
    graph = g.finish(y=g.softpick(g.input("x", F32, (Symbol("T", 3), 6))))
    opened, word = device(name), "expo" if name == "wgpu" else "nowhere"
    line = next(i for i, text in enumerate(bad.splitlines(), 1) if word in text)
    said = rf"kernel softpick of op 'softpick' \(.*\.py:\d+\): cannot be compiled: .*{word}"
    wanted = rf"(?s){said}.*\n +{line} [^\n]*{word}"
    with pytest.raises(BackendError, match=wanted):
        opened.lower(graph, plan_memory(graph, opened), {}, no_progress)
    forget("softpick")
    own.with_kernels_softpick("text")
    g = Builder()
    graph = g.finish(y=g.softpick(g.input("x", F32, (Symbol("T", 3), 6))))
    got, want = run_both(graph, {"x": np.ones((3, 6), np.float32)}, name, T=3)
    assert nmse(got["y"], want["y"]) < 1e-9


def test_a_text_cannot_be_run_in_python() -> None:
    own.with_kernels_softpick("text")
    g = Builder()
    graph = g.finish(y=g.softpick(g.input("x", F32, (Symbol("T", 3), 6))))
    with pytest.raises(BackendError, match=r"op 'softpick'.*its text is WGSL, which cannot be run in Python"):
        run_both(graph, {"x": np.ones((3, 6), np.float32)}, "python", T=3)


def test_a_backend_without_a_language_of_texts_takes_none() -> None:
    made = own.softpick()
    made.kernel("plain", workgroup=32, **own.SOFTPICK)(own.SOFTPICK_WGSL)
    with pytest.raises(
        BackendError, match="a text is for wgpu or opencl; plain wants a kernel in the language"
    ):
        GpuNodeSupport("plain").refuses(node_of(made))
