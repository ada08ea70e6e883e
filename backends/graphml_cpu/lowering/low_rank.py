"""Low-rank adapters: their part of the rows that have them."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml.ir.shape import bounds, max_elements
from graphml_cpu.compiler import KernelRef
from graphml_cpu.layouts import low_rank_list_bytes, low_rank_scratch_bytes
from graphml_cpu.lowering.step import (
    AddressTable,
    Argument,
    CpuLowering,
    CpuWorkspace,
    KernelCall,
    Scratch,
    leading,
    width,
)

_MODULE = "graphml_cpu.kernels.products.low_rank"


def _refuses(node: Node) -> str | None:
    other = next((operand for operand in node.inputs if operand.dtype.name != "f32"), None)
    return f"{other.name} is {other.dtype.name}" if other else None


def _ranks(node: Node) -> list[int]:
    """Of each adapter."""
    return [bounds(a.shape)[0] for a in node.inputs[2::3]]


def _workspace(node: Node, threads: int) -> int:
    """As many numbers as all ranks for each row."""
    return 4 * max_elements(node.shape[:-1]) * sum(_ranks(node))


def _lower(node: Node, threads: int) -> list[KernelCall]:
    total, x, *rest = node.inputs
    ranks, factors = _ranks(node), tuple(rest[1::3])
    n_rows, count = max_elements(node.shape[:-1]), len(ranks)
    entries = zip(factors, rest[0::3], rest[2::3], ranks, strict=True)
    shared: dict[str, Argument] = {
        "table": AddressTable(tuple(entries)), "count": count, "low": CpuWorkspace(node),
        "rows": leading(node),
    }  # fmt: skip
    down: dict[str, Argument] = {
        **shared, "x": x, "k": width(x), "scratch": Scratch(low_rank_list_bytes(count, n_rows)),
    }  # fmt: skip
    up: dict[str, Argument] = {
        **shared, "total": total, "y": node, "n": width(node), "rank": max(ranks),
        "scratch": Scratch(low_rank_scratch_bytes(max(ranks), count, n_rows)),
    }  # fmt: skip
    return [
        KernelCall(
            KernelRef("low_rank_down", _MODULE, "make_low_rank_down"), down, writes=("low",), reads=factors
        ),
        KernelCall(KernelRef("low_rank_up", _MODULE, "make_low_rank_up"), up, writes=("y",), reads=factors),
    ]


LOW_RANK = CpuLowering(("low_rank",), _lower, refuses=_refuses, workspace=_workspace)
