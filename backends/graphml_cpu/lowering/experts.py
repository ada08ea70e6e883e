"""Products with the matrices of chosen experts, as the file stores them or computed."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml.ir.shape import Symbol, bounds, max_elements
from graphml_cpu.compiler import KernelRef
from graphml_cpu.layouts import expert_scratch_bytes
from graphml_cpu.lowering.step import (
    Argument,
    Lowering,
    Scratch,
    Step,
    decodable,
    one_symbol,
    row_bytes,
    rows,
)


def _refuses(node: Node) -> str | None:
    weight = node.inputs[0]
    many = f"{weight.name} has a symbolic number of experts" if isinstance(weight.shape[0], Symbol) else None
    return decodable(weight) or many or one_symbol(node)


def _lower(node: Node, threads: int) -> list[Step]:
    weight, x, ids = node.inputs
    kind = weight.dtype.name
    n_experts, n, k = bounds(weight.shape)
    n_used = bounds(ids.shape)[1]
    shared = len(x.shape) == 2
    arguments: dict[str, Argument] = {
        "w": weight,
        "x": x,
        "ids": ids,
        "y": node,
        "n_experts": n_experts,
        "n_used": n_used,
        "n": n,
        "k": k,
        "expert_bytes": n * row_bytes(weight),
        "row_bytes": row_bytes(weight),
        "x_token_stride": 4 * k * (1 if shared else n_used),
        "x_slot_stride": 0 if shared else 4 * k,
        "y_stride": 4 * n,
        "scratch": Scratch(expert_scratch_bytes(k, n_experts, max_elements(ids.shape))),
        "pairs": rows(ids.shape),
    }
    ref = KernelRef(f"mul_mat_id-{kind}", "graphml_cpu.kernels.mul_mat_id", "make_mul_mat_id", (kind,))
    return [Step(ref, arguments, writes=("y",))]


EXPERTS = Lowering(("linear_id", "mul_mat_id"), _lower, refuses=_refuses)
