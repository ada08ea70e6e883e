"""Low-rank adapters: their part of the rows that have them."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml.ir.shape import bounds, max_elements
from graphml_cpu.compiler import KernelRef
from graphml_cpu.layouts import low_rank_scratch_bytes
from graphml_cpu.lowering.step import Argument, Lowering, Scratch, Step, Workspace, leading, one_symbol, width

_MODULE = "graphml_cpu.kernels.products.low_rank"


def _refuses(node: Node) -> str | None:
    other = next((one for one in node.inputs if one.dtype.name != "f32"), None)
    return one_symbol(node) or (f"{other.name} is {other.dtype.name}" if other else None)


def _workspace(node: Node, threads: int) -> int:
    """`rank` numbers for each row."""
    n_rows, rank = max_elements(node.shape[:-1]), bounds(node.inputs[2].shape)[0]
    return 4 * n_rows * rank


def _lower(node: Node, threads: int) -> list[Step]:
    total, x, a, factors, b = node.inputs
    n_rows, rank = max_elements(node.shape[:-1]), bounds(a.shape)[0]
    shared: dict[str, Argument] = {"factors": factors, "low": Workspace(node), "rank": rank}
    down: dict[str, Argument] = {
        **shared, "x": x, "a": a, "k": width(x), "scratch": Scratch(4 * n_rows), "rows": leading(node),
    }  # fmt: skip
    up: dict[str, Argument] = {
        **shared, "total": total, "b": b, "y": node, "n": width(node),
        "scratch": Scratch(low_rank_scratch_bytes(rank, n_rows)), "rows": leading(node),
    }  # fmt: skip
    return [
        Step(KernelRef("low_rank_down", _MODULE, "make_low_rank_down"), down, writes=("low",)),
        Step(KernelRef("low_rank_up", _MODULE, "make_low_rank_up"), up, writes=("y",)),
    ]


LOW_RANK = Lowering(("low_rank",), _lower, refuses=_refuses, workspace=_workspace)
