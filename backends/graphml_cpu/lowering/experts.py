"""Experts: how they are chosen, products with their matrices, the weighted sum of their outputs.

Rows packed to int8 meet formats that have a `CpuFormatReader`; all others are multiplied in floating point.
"""

from __future__ import annotations

from functools import partial

from graphml.ir.node import Node
from graphml.ir.op import integer, text
from graphml.ir.shape import bounds, max_elements
from graphml_cpu.compiler import KernelRef
from graphml_cpu.layouts import expert_scratch_bytes, record_bytes
from graphml_cpu.lowering.linear import product_kind, stored_row_bytes
from graphml_cpu.lowering.step import (
    Argument,
    CpuLowering,
    KernelCall,
    NodeResult,
    Scratch,
    decodable,
    leading,
    number,
    one_step,
    row_bytes,
    rows,
    width,
)
from graphml_cpu.packed import scratch_bytes

_COMBINE = "graphml_cpu.kernels.experts.combine"


def _refuses(node: Node) -> str | None:
    return decodable(node.inputs[0])


def _lower(node: Node, threads: int, one_order: bool = False) -> list[KernelCall]:
    weight, x, ids = node.inputs
    kind = product_kind(weight, x)
    n_experts, n, k = bounds(weight.shape)
    n_used, pairs = bounds(ids.shape)[1], max_elements(ids.shape)
    shared, x_bytes = len(x.shape) == 2, stored_row_bytes(x)
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
        "x_token_stride": x_bytes * (1 if shared else n_used),
        "x_slot_stride": 0 if shared else x_bytes,
        "y_stride": 4 * n,
        "pairs": rows(ids.shape),
    }
    if x.dtype.name != "q8_1":
        arguments["scratch"] = Scratch(expert_scratch_bytes(k, n_experts, pairs))
        name = "mul_mat_id_ordered" if one_order else "mul_mat_id"
        module = "graphml_cpu.kernels.experts.mul_mat_id"
        ref = KernelRef(f"{name}-{kind}", module, "make_mul_mat_id", (kind, one_order))
        return [KernelCall(ref, arguments, writes=("y",))]
    one_token = pairs == n_used
    tile_bytes = 0 if one_token else -(-scratch_bytes(kind, k) // 64) * 64
    arguments |= {"tile_bytes": tile_bytes, "scratch": Scratch(tile_bytes + record_bytes(n_experts, pairs))}
    form = "one" if one_token else "ordered" if one_order else "many"
    ref = KernelRef(
        f"mul_mat_id_packed-{kind}-{form}",
        "graphml_cpu.kernels.experts.mul_mat_id_packed",
        "make_mul_mat_id_packed",
        (kind, one_token, one_order and not one_token),
    )
    return [KernelCall(ref, arguments, writes=("y",))]


def _lower_combine(node: Node, threads: int) -> list[KernelCall]:
    y, weights = node.inputs
    ref = KernelRef("combine_experts", _COMBINE, "make_combine_experts")
    return one_step(
        ref, y=y, weights=weights, out=node, n_used=bounds(y.shape)[1], n=bounds(y.shape)[2],
        rows=rows(y.shape[:1]),
    )  # fmt: skip


def _lower_weights(node: Node, threads: int) -> list[KernelCall]:
    x, ids = node.inputs
    ref = KernelRef("gather_normalise", _COMBINE, "make_gather_normalise")
    return one_step(
        ref, x=x, ids=ids, out=node, n=width(x), k=width(ids), low=number(node, "low"),
        high=number(node, "high"), rows=leading(x),
    )  # fmt: skip


def _lower_routing(node: Node, threads: int) -> list[KernelCall]:
    x = node.inputs[0]
    score, normalise = text(node.attributes, "score"), bool(node.attributes["normalise"])
    ref = KernelRef(
        f"route_experts-{score}-{normalise}",
        "graphml_cpu.kernels.experts.routing",
        "make_route_experts",
        (score, normalise),
    )
    return one_step(
        ref, ("ids", "weights"), x=x, bias=node.inputs[1] if node.attributes["bias"] else 0,
        ids=NodeResult(node, 0), weights=NodeResult(node, 1), n=width(x), k=integer(node.attributes, "k"),
        low=number(node, "low"), high=number(node, "high"), scratch=Scratch(2 * row_bytes(x)),
        rows=leading(x),
    )  # fmt: skip


ROUTING = CpuLowering(("route_experts",), _lower_routing, replicable=True)
COMBINE = CpuLowering(("combine_experts",), _lower_combine, replicable=True)
WEIGHTS = CpuLowering(("gather_normalise",), _lower_weights, replicable=True)
EXPERTS = CpuLowering(
    ("linear_id", "mul_mat_id"), _lower, refuses=_refuses, one_order=partial(_lower, one_order=True)
)
