"""Kernels for GPUs that come with ops of one's own: how they are declared, and what a node's dispatch is.

In the language of `graphml_gpu.language`, one function for all GPUs:

    @softpick.kernel("wgpu", "opencl", groups="row")
    def softpick_gpu(x: Read[f32], out: Write[f32], rows: u32, n: u32, eps: f32, *, GROUP: int = 64) -> None:
        row = group_number()                                    # of graphml_gpu.kernels.grid
        if row < rows:
            ...

Buffers have the names of operands, which are read, and of the result, `out`, which is written; of several
results `out_0`, `out_1`, ..., each of which is written. Elements are f32 or i32 as the values are, also as
vectors where the last dimension is a multiple of their lanes; values of f16 and of all other types are bound
by their bytes, as u32. Scalars are sizes and attributes of the op, by name:

    rows                  the product of all leading dimensions of the (first) result, in this step    u32
    n                     its last dimension                                                           u32
    count                 all its elements                                                             u32
    <operand>_rows, <operand>_n    the same of an operand                                              u32
    an attribute          int: i32 or u32; float: f32; bool: u32; it comes before a size of that name

What is behind `*` is known when the kernel is compiled, once for each value: `GROUP` (or `GROUP_X`,
`GROUP_Y`, `GROUP_Z`), the size of the workgroup; an attribute of the op; `N`, the last dimension of the first
result.

Options of `OwnOp.kernel`:

    groups    "row": a workgroup for each row; "element": an invocation for each element; or a function of the
              node that returns a number of workgroups (a whole number, a `dispatch.Count` or a grid such as
              `dispatch.along` makes). Rows and elements are numbered by `group_number()`, `element_number()`;
              a long grid has a few too many.
    refuses   optional: a function of the node that returns why the kernel cannot run it, or None. Such a node
              runs in NumPy.

As a text, of WGSL for the backend wgpu and of OpenCL C for opencl, with more options; see
`graphml_gpu.language.text_kernels` for what is in the text:

    softpick.kernel(
        "wgpu", bindings=("x", "out"), scalars=("rows", "n", "eps"), workgroup=(64, 1, 1), groups="row"
    )(WGSL)

    bindings      the buffers, in the order of their bindings; named as above
    scalars       the scalars, in the order of the struct; named as above. Without: none
    workgroup     its size: a whole number or up to three
    entry         the function. Without: it is called like the op
    shared_bytes  bytes of shared memory of a workgroup: only where the text declares structs there, or has
                  expressions as lengths

A declaration that contradicts the op is a `BackendError`. A node that a kernel cannot run, for its types or
because the device has too little of something, is refused with a reason, and runs in NumPy.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from graphml.backend.node_values import viewed
from graphml.errors import BackendError
from graphml.ir.node import Node
from graphml.ir.op import Op
from graphml.ir.own_op import OwnKernel, OwnOp
from graphml_gpu.dispatch import Along, Count, Dims, Dispatch, GpuLowering, Grid, Groups, along, rows
from graphml_gpu.language.text_kernels import TextKernel
from graphml_gpu.own_ops.declared_kernel import DeclaredKernel, declared_kernel
from graphml_gpu.own_ops.named_values import (
    WIDTH,
    arguments_of,
    constant_of,
    first_result,
    result_names,
    scalar_of,
    types_of,
    unfit_element,
    unfit_number,
)


def own_lowering(op: Op, backend: str) -> GpuLowering | None:
    """The lowering of an op that has a kernel for a backend; None for any other op.

    `BackendError` where the kernel is not declared as it has to be.
    """
    kernel = op.kernels.get(backend) if isinstance(op, OwnOp) else None
    return _lowering(op, kernel, backend) if isinstance(op, OwnOp) and kernel is not None else None


@functools.cache
def _lowering(op: OwnOp, kernel: OwnKernel, backend: str) -> GpuLowering:
    declared = declared_kernel(op, kernel, backend)
    return GpuLowering(
        (op.name,), lambda node, context: [_dispatch(declared, node)], lambda node: _refuses(declared, node)
    )


def _dispatch(declared: DeclaredKernel, node: Node) -> Dispatch:
    op, values = declared.op, arguments_of(declared.op, node)
    return Dispatch(
        declared.kernel,
        {name: constant_of(op, node, name) for name in declared.constants},
        {name: values[name] for name in declared.buffers},
        {name: scalar_of(op, node, name) for name in declared.scalars},
        _grid(declared, node),
        op.name,
    )


def _grid(declared: DeclaredKernel, node: Node) -> Grid:
    shape = first_result(node.type).shape
    if declared.groups == "row":
        return along(rows(shape[:-1]))
    if declared.groups == "element":
        return along(rows(shape), declared.group)
    groups = _asked(declared, "groups", node)
    if isinstance(groups, Count) or _is_number_of_groups(groups, 1):
        return along(groups)
    if isinstance(groups, Along) or _is_grid(groups, 1):
        grid: Grid = groups
        return grid
    if not callable(groups):
        wanted = "a whole number, a Count, a grid of three numbers or a function of a step's dims"
        raise _wrong(declared, f"groups: wanted {wanted}, none below 1; its function returned {groups!r}")
    return functools.partial(_grid_of_step, declared, groups)


def _grid_of_step(declared: DeclaredKernel, asked: Callable[[Dims], Any], dims: Dims) -> Groups:
    """The workgroups of a step, by a function of the author."""
    try:
        grid = asked(dims)
    except Exception as error:
        reason = f"groups: its function of dims raised {type(error).__name__}: {error}; of {dict(dims)}"
        raise _wrong(declared, reason) from error
    if not _is_grid(grid, 0):
        reason = "wanted three whole numbers of at least 0; its function of dims returned"
        raise _wrong(declared, f"groups: {reason} {grid!r}, of {dict(dims)}")
    groups: Groups = grid
    return groups


def _is_grid(groups: Any, least: int) -> bool:
    is_triple = isinstance(groups, tuple) and len(groups) == 3
    return is_triple and all(_is_number_of_groups(n, least) for n in groups)


def _is_number_of_groups(n: Any, least: int) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and n >= least


def _asked(declared: DeclaredKernel, option: str, node: Node) -> Any:
    """What a function of the author returns for a node."""
    try:
        return getattr(declared, option)(node)
    except Exception as error:
        reason = f"{option}: its function raised {type(error).__name__}: {error}; of {node!r}"
        raise _wrong(declared, reason) from error


def _wrong(declared: DeclaredKernel, reason: str) -> BackendError:
    return BackendError(f"op {declared.op.name!r}: its kernel ({declared.place}): {reason}")


def _refuses(declared: DeclaredKernel, node: Node) -> str | None:
    return next(filter(None, _reasons(declared, node)), None)


def _reasons(declared: DeclaredKernel, node: Node) -> Iterator[str | None]:
    """Why a kernel cannot run a node."""
    op, types = declared.op, types_of(declared.op, node)
    written = {name for name, buffer in declared.buffers.items() if buffer.writes}
    if set(result_names(node.type)) != written:
        yield f"the kernel of {op.name} writes {', '.join(sorted(written))}"
        return
    for name, buffer in declared.buffers.items():
        unfit, lanes = unfit_element(buffer.element, types[name]), buffer.element.lanes
        said = f"the kernel of {op.name} has {name} of {buffer.element.name}"
        if unfit is not None:
            yield f"{said}; wanted {unfit}"
        elif buffer.element.kind in ("f32", "i32") and rows(types[name].shape[-1:]).factor % lanes:
            yield f"{said}: its rows are no multiple of {lanes}"
    for name, kind in declared.scalars.items():
        if name in op.declared.kinds:
            yield unfit_number(op, node, name, kind)
    if WIDTH in declared.constants and not rows(first_result(node.type).shape[-1:]).fixed:
        yield f"the kernel of {op.name} has the constant {WIDTH}; the last dimension is a symbol"
    yield _overlap(declared, node)
    reason = _asked(declared, "refuses", node)
    if not isinstance(reason, str | None):
        raise _wrong(declared, f"refuses: wanted a reason or None; its function returned {reason!r}")
    yield reason


def _overlap(declared: DeclaredKernel, node: Node) -> str | None:
    """Values that may have the same memory need buffers of the same elements: words of any, but in a text."""
    names = {
        name: viewed(source) for name, source in zip(declared.op.declared.operands, node.inputs, strict=True)
    }
    inplace = [declared.op.declared.operands[i] for i in declared.op.inplace]
    for a, b in itertools.combinations(declared.buffers.values(), 2):
        pair = {a.name, b.name}
        same = pair <= set(names) and names[a.name] is names[b.name]
        taken = (a.writes or b.writes) and not pair.isdisjoint(inplace)
        words = a.element.lanes == b.element.lanes == 1 and "f16" not in (a.element.kind, b.element.kind)
        alike = a.element == b.element or (words and not isinstance(declared.kernel, TextKernel))
        if (same or taken) and not alike:
            return f"{a.name} and {b.name} may have the same memory, and are buffers of different elements"
    return None
