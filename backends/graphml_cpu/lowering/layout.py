"""Copies in another layout, of elements of 4 bytes."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml.ir.op import integer, integers
from graphml_cpu.compiler import KernelRef
from graphml_cpu.lowering.step import (
    Argument,
    CpuLowering,
    KernelCall,
    four_bytes,
    leading,
    one_step,
    row_bytes,
    rows,
    width,
)

_MODULE = "graphml_cpu.kernels.indexing.layout"


def _refuses_permute(node: Node) -> str | None:
    too_many = len(node.shape) > 4
    return f"{node.name} has more than 4 dimensions" if too_many else four_bytes(node)


def _lower_permute(node: Node, threads: int) -> list[KernelCall]:
    x = node.inputs[0]
    missing = 4 - len(x.shape)  # dimensions of 1 in front
    axes = (*range(missing), *(axis + missing for axis in integers(node.attributes, "axes")))
    sizes = (1,) * missing + x.shape
    arguments: dict[str, Argument] = {"x": x, "out": node}
    arguments |= {f"n{i}": rows((size,)) for i, size in enumerate(sizes)}
    ref = KernelRef(f"permute-{'-'.join(map(str, axes))}", _MODULE, "make_permute", axes)
    return [KernelCall(ref, arguments)]


def _lower_concat(node: Node, threads: int) -> list[KernelCall]:
    a, b = node.inputs
    ref = KernelRef("concat", _MODULE, "make_concat")
    return one_step(ref, a=a, b=b, out=node, n_a=width(a), n_b=width(b), rows=leading(node))


def _lower_columns(node: Node, threads: int) -> list[KernelCall]:
    x = node.inputs[0]
    ref = KernelRef("columns", _MODULE, "make_columns")
    return one_step(
        ref, x=x, out=node, start=integer(node.attributes, "start"), n=width(node), x_stride=row_bytes(x),
        rows=leading(x),
    )  # fmt: skip


def _lower_repeat(node: Node, threads: int) -> list[KernelCall]:
    x = node.inputs[0]
    ref = KernelRef("repeat", _MODULE, "make_repeat")
    return one_step(ref, x=x, out=node, times=integer(node.attributes, "n"), n=width(x), rows=leading(x))


PERMUTE = CpuLowering(("permute",), _lower_permute, refuses=_refuses_permute, replicable=True)
CONCAT = CpuLowering(("concat",), _lower_concat, refuses=four_bytes, replicable=True)
COLUMNS = CpuLowering(("columns",), _lower_columns, refuses=four_bytes, replicable=True)
REPEAT = CpuLowering(("repeat",), _lower_repeat, refuses=four_bytes, replicable=True)
