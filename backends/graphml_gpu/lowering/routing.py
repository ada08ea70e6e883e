"""Experts' choice, weights and weighted sum."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml.ir.op import integer, text
from graphml_gpu.dispatch import (
    NOTHING,
    DeviceView,
    Dispatch,
    GpuLowering,
    NodeResult,
    all_of,
    number,
    rows,
    width,
)
from graphml_gpu.kernels.experts.routing import combine_experts, gather_normalise, route_experts
from graphml_gpu.lowering.groups import per_element, per_row

_MOST_EXPERTS = 1536
"""Experts whose scores and keys fit the 16 KB of memory that any device gives a workgroup."""


def _refuses_routing(node: Node) -> str | None:
    n = width(node.inputs[0])
    return f"experts are chosen among {_MOST_EXPERTS} at most; got {n}" if n > _MOST_EXPERTS else None


def _lower_routing(node: Node, context: DeviceView) -> list[Dispatch]:
    x = node.inputs[0]
    count, bias = rows(x.shape[:-1]), bool(node.attributes["bias"])
    k = integer(node.attributes, "k")
    constants = {
        "N": width(x), "K": k, "SCORE": text(node.attributes, "score"), "BIAS": bias,
        "NORMALISE": bool(node.attributes["normalise"]),
    }  # fmt: skip
    return per_row(
        route_experts, count, width(x), constants, x=x, bias=node.inputs[1] if bias else NOTHING,
        ids=NodeResult(node, 0), weights=NodeResult(node, 1), rows=count, k=k, low=number(node, "low"),
        high=number(node, "high"),
    )  # fmt: skip


def _lower_weights(node: Node, context: DeviceView) -> list[Dispatch]:
    x, ids = node.inputs
    count, low, high = rows(x.shape[:-1]), number(node, "low"), number(node, "high")
    return per_element(
        gather_normalise, count, x=x, ids=ids, out=node, rows=count, n=width(x), k=width(ids), low=low,
        high=high,
    )  # fmt: skip


def _lower_combine(node: Node, context: DeviceView) -> list[Dispatch]:
    y, weights = node.inputs
    count, used = rows(node.shape), width(weights)
    return per_element(
        combine_experts, count, y=y, weights=weights, out=node, n=count, width=width(node), used=used
    )


ROUTING = GpuLowering(("route_experts",), _lower_routing, refuses=_refuses_routing)
WEIGHTS = GpuLowering(("gather_normalise",), _lower_weights, refuses=lambda node: all_of(node, "f32", "i32"))
COMBINE = GpuLowering(("combine_experts",), _lower_combine, refuses=lambda node: all_of(node, "f32"))
