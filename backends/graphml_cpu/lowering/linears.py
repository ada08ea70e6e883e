"""Several products of one value, and a gate with its two."""

from __future__ import annotations

from functools import partial

from graphml.ir.node import Node
from graphml.ir.op import text
from graphml.ir.shape import bounds, max_elements
from graphml_cpu.layouts import glu_scratch_bytes
from graphml_cpu.lowering.linear import (
    Loops,
    conversion,
    is_native,
    is_one_row,
    is_packed,
    product,
    product_kind,
    stored_row_bytes,
)
from graphml_cpu.lowering.step import (
    AddressTable,
    Argument,
    CpuLowering,
    CpuWorkspace,
    KernelCall,
    NodeResult,
    Scratch,
    decodable,
    leading,
    rows,
    width,
)
from graphml_cpu.packed import few_rows, scratch_bytes
from graphml_cpu.sizes import part_offset


def _products(node: Node) -> tuple[Node, list[tuple[Node, Node | int]]]:
    """What is multiplied, and each weight with its bias."""
    x, *rest = node.inputs
    if not node.attributes["bias"]:
        return x, [(weight, 0) for weight in rest]
    half = len(rest) // 2
    return x, list(zip(rest[:half], rest[half:], strict=True))


def _refuses_linears(node: Node) -> str | None:
    reasons = [decodable(weight) for weight, _ in _products(node)[1]]
    return next((reason for reason in reasons if reason), None)


def _lower_linears(node: Node, threads: int, one_order: bool = False) -> list[KernelCall]:
    """One call for all products with weights of one format that is read as the file has it, else one each."""
    x, products = _products(node)
    steps: list[KernelCall] = []
    alike: dict[str, list[tuple[Node, Node | int, int, int]]] = {}
    for i, (weight, bias) in enumerate(products):
        if is_native(weight, x):
            entry = (weight, bias, bounds(weight.shape)[0], part_offset(node.type, i))
            alike.setdefault(product_kind(weight, x), []).append(entry)
        else:
            steps.append(product(weight, x, NodeResult(node, i), bias, 0, one_order))
    for kind, entries in alike.items():
        arguments: dict[str, Argument] = {
            "table": AddressTable(tuple(entries)),
            "count": len(entries),
            "x": x,
            "y": node,
            "k": width(x),
            "x_stride": stored_row_bytes(x),
            "few_rows": few_rows(kind, sum(n for _, _, n, _ in entries)),
            "scratch": Scratch(scratch_bytes(kind, width(x))),
            "rows": leading(x),
        }
        loops = Loops(kind, is_one_row(x), one_order)
        ref = loops.kernel("linears", "make_linears", "graphml_cpu.kernels.products.linears")
        steps.append(KernelCall(ref, arguments, writes=("y",)))
    return steps


def _refuses_glu(node: Node) -> str | None:
    gate, up, x = node.inputs[:3]
    if gate.dtype is not up.dtype:
        return f"{gate.name} is {gate.dtype.name} and {up.name} {up.dtype.name}"
    if not is_native(gate, x):
        return f"no kernel multiplies {gate.dtype.name} as the file has it"
    if node.dtype.is_format and not is_packed(node.dtype):
        return f"no kernel converts to {node.dtype.name}"
    return decodable(gate)


def _workspace(node: Node, threads: int) -> int:
    """The gate's result before it is converted."""
    return 4 * max_elements(node.shape) if is_packed(node.dtype) else 0


def _lower_glu(node: Node, threads: int, one_order: bool = False) -> list[KernelCall]:
    gate, up, x = node.inputs[:3]
    kind, glu = product_kind(gate, x), text(node.attributes, "glu")
    gate_bias, up_bias = node.inputs[3:] if node.attributes["bias"] else (0, 0)
    converted = is_packed(node.dtype)
    products = -(-scratch_bytes(kind, width(x)) // 64) * 64
    n_rows = max_elements(x.shape[:-1])
    result: Argument = CpuWorkspace(node) if converted else node
    arguments: dict[str, Argument] = {
        "gate": gate,
        "up": up,
        "x": x,
        "out": result,
        "gate_bias": gate_bias,
        "up_bias": up_bias,
        "n": width(node),
        "k": width(x),
        "x_stride": stored_row_bytes(x),
        "few_rows": few_rows(kind, 2 * width(node)),
        "scratch": Scratch(products + glu_scratch_bytes(n_rows)),
        "products": products,
        "rows": leading(x),
    }
    loops = Loops(kind, n_rows == 1, one_order)
    ref = loops.kernel("mul_mat_glu", "make_mul_mat_glu", "graphml_cpu.kernels.products.mul_mat_glu", glu)
    steps = [KernelCall(ref, arguments, split=True)]
    if converted:
        convert: dict[str, Argument] = {
            "x": result,
            "out": node,
            "k": width(node),
            "rows": rows(x.shape[:-1]),
        }
        steps.append(KernelCall(conversion(node.dtype.name), convert))
    return steps


LINEARS = CpuLowering(
    ("linears",), _lower_linears, refuses=_refuses_linears, one_order=partial(_lower_linears, one_order=True)
)
GLU = CpuLowering(
    ("mul_mat_glu",),
    _lower_glu,
    refuses=_refuses_glu,
    workspace=_workspace,
    replicable=True,  # what is cheap is the conversion alone
    shared=lambda node: not is_packed(node.dtype),
    one_order=partial(_lower_glu, one_order=True),
)
