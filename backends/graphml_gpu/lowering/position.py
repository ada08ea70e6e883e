"""Rotary positions: the step's table, its application, and what is written to caches."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from graphml.backend.node_values import refuses_factors
from graphml.ir.interpreter import of_weights
from graphml.ir.node import Node
from graphml.ir.op import Array, integer, number
from graphml.ir.ops.position import frequencies, magnitude
from graphml.ir.shape import bounds, max_elements
from graphml_gpu.dispatch import NOTHING, DeviceView, Dispatch, GpuLowering, HostConstant, rows, width
from graphml_gpu.kernels.attention.cache_elements import CACHE_TYPES
from graphml_gpu.kernels.positions.position import position_scale, rope_table
from graphml_gpu.kernels.positions.rope import rope, write_rows
from graphml_gpu.lowering.groups import per_element


def turns(angles: Array) -> Array:
    """Radians per position, float64 [n], as fractions of a turn: uint32 [n, 2] in 2^-32 and then in 2^-48."""
    fraction = np.mod(angles / (2.0 * np.pi), 1.0) * 2.0**32
    whole = np.floor(fraction)
    return np.stack([whole, np.floor((fraction - whole) * 65536.0)], -1).astype(np.uint32)


def _lower_table(node: Node, context: DeviceView) -> list[Dispatch]:
    def make(weights: Mapping[str, Array]) -> Array:
        factors = of_weights(node.inputs[1], weights) if len(node.inputs) > 1 else None
        return turns(frequencies(node.attributes, factors))

    count = rows(node.shape[:2])
    return per_element(
        rope_table, count, positions=node.inputs[0], turns=HostConstant(make), out=node, n=count,
        pairs=bounds(node.shape)[1], scale=magnitude(node.attributes),
    )  # fmt: skip


def _lower_scale(node: Node, context: DeviceView) -> list[Dispatch]:
    count, attributes = rows(node.shape[:1]), node.attributes
    return per_element(
        position_scale, count, positions=node.inputs[0], out=node, n=count,
        factor=number(attributes, "factor"), step=integer(attributes, "step"),
        offset=integer(attributes, "offset"),
    )  # fmt: skip


def _lower_rope(node: Node, context: DeviceView) -> list[Dispatch]:
    x, table = node.inputs
    _, n_head, head_dim = bounds(x.shape)
    pairs = bounds(table.shape)[1]
    count = rows((x.shape[0], n_head, head_dim - pairs))
    constants = {"MODE": str(node.attributes["mode"])}
    return per_element(
        rope, count, constants, x=x, turns=table, out=node, n=count, n_head=n_head, head_dim=head_dim,
        pairs=pairs,
    )  # fmt: skip


def _refuses_write(node: Node) -> str | None:
    state = node.inputs[0]
    kind, each = state.dtype.name, max_elements((1, *state.shape[1:]))
    if kind not in CACHE_TYPES:
        return f"no kernel keeps a cache of {kind}"
    cut = bounds(state.shape)[-1] % state.dtype.block_elements or each % CACHE_TYPES[kind].unit
    return f"{kind} is written {CACHE_TYPES[kind].unit} elements at a time; got {state.type}" if cut else None


def _lower_write(node: Node, context: DeviceView) -> list[Dispatch]:
    state, x, *table, cells = node.inputs
    form, each = CACHE_TYPES[state.dtype.name], max_elements((1, *x.shape[1:]))
    count = rows((x.shape[0], each // form.unit))
    constants = {"MODE": str(node.attributes.get("mode", "none")), "UNIT": form.unit, "STORE": form.store}
    constants["LOOKS"] = not (node.attributes.get("distinct", False) or bounds(x.shape)[0] == 1)
    return per_element(
        write_rows, count, constants, x=x, turns=table[0] if table else NOTHING, cells=cells, cache=node,
        n=count, width=each, head_dim=width(x), pairs=bounds(table[0].shape)[1] if table else 0,
        n_cells=rows(state.shape[:1]),
    )  # fmt: skip


TABLE = GpuLowering(("rope_table",), _lower_table, refuses=refuses_factors)
SCALE = GpuLowering(("position_scale",), _lower_scale)
ROPE = GpuLowering(("rope",), _lower_rope)
WRITE = GpuLowering(("set_rows", "rope_set_rows"), _lower_write, refuses=_refuses_write)
