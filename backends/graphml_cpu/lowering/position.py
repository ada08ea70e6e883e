"""Rotary positions: the step's table and its application."""

from __future__ import annotations

from collections.abc import Mapping

from graphml.backend.node_values import refuses_factors
from graphml.ir.interpreter import of_weights
from graphml.ir.node import Node
from graphml.ir.op import Array, integer, number
from graphml.ir.ops.position import frequencies, magnitude
from graphml.ir.shape import bounds
from graphml_cpu.compiler import KernelRef
from graphml_cpu.layouts import LARGEST_HEAD
from graphml_cpu.lowering.index import write_form
from graphml_cpu.lowering.step import CpuLowering, HostConstant, KernelCall, cache_type, one_step, rows

_MODULE = "graphml_cpu.kernels.positions.rope"


def _lower_table(node: Node, threads: int) -> list[KernelCall]:
    def angles(weights: Mapping[str, Array]) -> Array:
        return frequencies(
            node.attributes, of_weights(node.inputs[1], weights) if len(node.inputs) > 1 else None
        )

    ref = KernelRef("rope_table", _MODULE, "make_rope_table")
    return one_step(
        ref, positions=node.inputs[0], frequencies=HostConstant(angles), scale=magnitude(node.attributes),
        out=node, n_half=bounds(node.shape)[1], rows=rows(node.shape[:1]),
    )  # fmt: skip


def _lower_rope(node: Node, threads: int) -> list[KernelCall]:
    x, table = node.inputs
    mode = str(node.attributes["mode"])
    _, n_head, head_dim = bounds(x.shape)
    ref = KernelRef(f"rope-{mode}", _MODULE, "make_rope", (mode,))
    return one_step(
        ref, x=x, table=table, out=node, n_head=n_head, head_dim=head_dim, n_rot=2 * bounds(table.shape)[1],
        x_stride=4 * n_head * head_dim, out_stride=4 * n_head * head_dim, rows=rows(x.shape[:1]),
    )  # fmt: skip


def _refuses_rope_set_rows(node: Node) -> str | None:
    state = node.inputs[0]
    reason = cache_type(state)
    if reason is None and state.dtype.block_elements > 1 and bounds(state.shape)[-1] > LARGEST_HEAD:
        return f"heads are quantised up to {LARGEST_HEAD} elements; got {state.type}"
    return reason


def _lower_rope_set_rows(node: Node, threads: int) -> list[KernelCall]:
    state, x, table, cells = node.inputs
    mode, (named, form) = str(node.attributes["mode"]), write_form(node)
    _, n_head, head_dim = bounds(x.shape)
    ref = KernelRef(f"rope_cache_write-{mode}-{named}", _MODULE, "make_rope_cache_write", (mode, *form))
    return one_step(
        ref, ("cache",), x=x, table=table, cells=cells, cache=node, n_head=n_head, head_dim=head_dim,
        n_rot=2 * bounds(table.shape)[1], x_stride=4 * n_head * head_dim, n_cells=rows(state.shape[:1]),
        rows=rows(x.shape[:1]),
    )  # fmt: skip


# Read by all layers, so that a thread that comes late could not make it for itself.
def _lower_scale(node: Node, threads: int) -> list[KernelCall]:
    module = "graphml_cpu.kernels.positions.position_scale"
    ref = KernelRef("position_scale", module, "make_position_scale")
    return one_step(
        ref, positions=node.inputs[0], out=node, factor=number(node.attributes, "factor"),
        step=integer(node.attributes, "step"), offset=integer(node.attributes, "offset"),
        rows=rows(node.shape[:1]),
    )  # fmt: skip


SCALE = CpuLowering(("position_scale",), _lower_scale, replicable=True)
TABLE = CpuLowering(("rope_table",), _lower_table, refuses=refuses_factors)
ROPE = CpuLowering(("rope",), _lower_rope, replicable=True)
ROPE_SET_ROWS = CpuLowering(("rope_set_rows",), _lower_rope_set_rows, refuses=_refuses_rope_set_rows)
