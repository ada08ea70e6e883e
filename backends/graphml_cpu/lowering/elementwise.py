"""Elementwise ops, gates among them."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml.ir.shape import Dim, Symbol, max_elements
from graphml_cpu.compiler import KernelRef
from graphml_cpu.lowering.step import (
    Argument,
    CpuLowering,
    KernelCall,
    leading,
    number,
    one_step,
    row_bytes,
    rows,
    width,
)

_MODULE = "graphml_cpu.kernels.elementwise.operations"
_CHOICE = "graphml_cpu.kernels.elementwise.choice"


def _rows_of(node: Node) -> dict[str, Argument]:
    return {"n": width(node), "rows": leading(node)}


def _lower_unary(node: Node, threads: int) -> list[KernelCall]:
    x, op = node.inputs[0], node.op.name
    ref = KernelRef(f"unary-{op}", _MODULE, "make_unary", (op,))
    return one_step(ref, x=x, out=node, x_stride=row_bytes(x), out_stride=row_bytes(node), **_rows_of(x))


_NUMBERS = {"scale": ("factor", "offset"), "clamp": ("low", "high"), "softcap": ("factor", "limit")}


def _lower_numbers(node: Node, threads: int) -> list[KernelCall]:
    x, op = node.inputs[0], node.op.name
    arguments = {"x": x, "out": node, "x_stride": row_bytes(x), "out_stride": row_bytes(node), **_rows_of(x)}
    arguments |= {slot: number(node, name) for slot, name in zip("pq", _NUMBERS[op], strict=True)}
    return [KernelCall(KernelRef(op, _MODULE, "make_of_two_numbers", (op,)), arguments)]


def _row(a: Node, b: Node) -> int:
    """How many of a's last dimensions b is one row of, the same for all others; 0 where it is none."""
    shape = b.shape
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    known = not any(isinstance(dim, Symbol) for dim in shape)
    return len(shape) if known and a.shape[-len(shape) :] == shape else 0


def _numbers(a: Node, b: Node) -> tuple[int, int] | None:
    """Of one number for each row of a: how many of a's last dimensions are a row, and how many numbers.

    After so many rows b begins anew. None where b is something else.
    """
    if max_elements(b.shape) == 1:
        return 1, 1
    dims = 0
    while b.shape[-1 - dims] == 1:
        dims += 1
    shape, before = b.shape[: len(b.shape) - dims], a.shape[: len(a.shape) - dims]
    if dims == 0 or any(isinstance(dim, Symbol) for dim in a.shape[-dims:-1]):
        return None
    while shape != before and shape[0] == 1:
        shape = shape[1:]
    known = not any(isinstance(dim, Symbol) for dim in shape)
    if shape == before or (known and before[-len(shape) :] == shape):
        return dims, max_elements(shape)
    return None


def _stretch(node: Node) -> str | None:
    """How b is stretched along a: `same` shape, one `row` for all rows, one `number` for each row."""
    a, b = node.inputs
    if b.shape == a.shape:
        return "same"
    if _numbers(a, b):
        return "number"
    return "row" if _row(a, b) else None


def _refuses_binary(node: Node) -> str | None:
    if _stretch(node) is None:
        return f"{node.inputs[1].name} is stretched in a way that has no kernel"
    return None


def _lower_binary(node: Node, threads: int) -> list[KernelCall]:
    a, b = node.inputs
    op, stretch, numbers = node.op.name, _stretch(node), _numbers(a, b)
    if stretch == "number" and numbers:
        row_dims, period = numbers
        kind, factory, more = "binary_scalar", "make_binary_scalar", {"b_rows": period}
    else:
        row_dims = _row(a, b) if stretch == "row" else 1
        kind, factory, more = "binary", "make_binary", {"b_stride": 0 if stretch == "row" else row_bytes(b)}
    n = max_elements(a.shape[-row_dims:])
    ref = KernelRef(f"{kind}-{op}", _MODULE, factory, (op,))
    return one_step(
        ref, a=a, b=b, out=node, n=n, a_stride=4 * n, out_stride=4 * n, rows=rows(a.shape[:-row_dims]), **more
    )


def _lower_cast(node: Node, threads: int) -> list[KernelCall]:
    to = node.dtype.name
    ref = KernelRef(f"cast-{to}", _CHOICE, "make_cast", (to,))
    return one_step(ref, x=node.inputs[0], out=node, **_rows_of(node))


def _rows_along(a: Node, b: Node) -> tuple[int, int] | None:
    """(repeats, period): row r of a meets row r // repeats % period of b; None where no two numbers say it.

    A period of 0 is none. Rows are of the last dimension.
    """
    padded = (*(1,) * (len(a.shape) - len(b.shape)), *b.shape)
    pairs = [pair for pair in zip(a.shape[:-1], padded[:-1], strict=True) if pair[0] != 1]
    repeats: list[Dim] = []
    period: list[Dim] = []
    while pairs and pairs[-1][1] == 1:
        repeats.append(pairs.pop()[0])
    while pairs and pairs[-1][0] == pairs[-1][1]:
        period.append(pairs.pop()[0])
    if not period:
        return 1, 1
    known = (*repeats, *(period if pairs else ()))
    if any(isinstance(dim, Symbol) for dim in known) or any(kept != 1 for _, kept in pairs):
        return None
    return max_elements(tuple(repeats)), max_elements(tuple(period)) if pairs else 0


def _refuses_where(node: Node) -> str | None:
    mask, a, b = node.inputs
    for operand in (mask, b):
        if _rows_along(a, operand) is None:
            return f"{operand.name} is stretched in a way that has no kernel"
    return None


def _lower_where(node: Node, threads: int) -> list[KernelCall]:
    mask, a, b = node.inputs
    n = width(a)
    arguments: dict[str, Argument] = {"a": a, "out": node, "n": n, "rows": leading(a)}
    single = []
    for name, value in (("mask", mask), ("b", b)):
        repeats, period = _rows_along(a, value) or (1, 0)
        arguments |= {name: value, f"{name}_repeats": repeats, f"{name}_period": period}
        single.append(width(value) == 1)
    ref = KernelRef(f"where-{single[0]:d}{single[1]:d}", _CHOICE, "make_where", tuple(single))
    return [KernelCall(ref, arguments)]


def _lower_glu(node: Node, threads: int) -> list[KernelCall]:
    gate, up = node.inputs
    ref = KernelRef(f"glu-{node.op.name}", _MODULE, "make_glu", (node.op.name,))
    return one_step(
        ref, a=gate, b=up, out=node, a_stride=row_bytes(gate), b_stride=row_bytes(up),
        out_stride=row_bytes(node), **_rows_of(gate),
    )  # fmt: skip


UNARY = CpuLowering(
    (
        "neg",
        "abs",
        "sqr",
        "sqrt",
        "exp",
        "log",
        "floor",
        "round",
        "tanh",
        "sigmoid",
        "relu",
        "silu",
        "gelu",
        "gelu_erf",
        "gelu_quick",
        "softplus",
    ),
    _lower_unary,
    replicable=True,
)
NUMBERS = CpuLowering(tuple(_NUMBERS), _lower_numbers, replicable=True)
BINARY = CpuLowering(
    ("add", "sub", "mul", "div", "maximum", "minimum", "less", "less_equal", "equal"),
    _lower_binary,
    refuses=_refuses_binary,
    replicable=True,
)
CAST = CpuLowering(("cast",), _lower_cast, replicable=True)
WHERE = CpuLowering(("where",), _lower_where, refuses=_refuses_where, replicable=True)
GLU = CpuLowering(
    ("swiglu", "swiglu_oai", "geglu", "geglu_erf", "geglu_quick", "reglu"),
    _lower_glu,
    replicable=True,
)
