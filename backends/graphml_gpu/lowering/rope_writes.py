"""A step's queries, keys and values on their way to attention: one dispatch for three nodes."""

from __future__ import annotations

from collections.abc import Sequence

from graphml.ir.node import Node
from graphml.ir.shape import bounds, max_elements
from graphml_gpu.dispatch import Count, DeviceView, Dispatch, Joint, rows, width
from graphml_gpu.kernels.attention.cache_elements import CACHE_TYPES
from graphml_gpu.kernels.positions.rope_writes import rope_writes
from graphml_gpu.lowering.groups import per_element

_OPS = ("rope", "rope_set_rows", "set_rows")


def _lower(nodes: Sequence[Node], context: DeviceView) -> list[Dispatch] | None:
    """`rope`, `rope_set_rows` and `set_rows`, one of each, of the same positions and cells."""
    if sorted(node.op.name for node in nodes) != sorted(_OPS):
        return None
    rope, keys, values = sorted(nodes, key=lambda node: _OPS.index(node.op.name))
    q, table = rope.inputs
    k_state, k, k_table, cells = keys.inputs
    v_state, v, v_cells = values.inputs
    alike = (
        table is k_table
        and cells is v_cells
        and rope.attributes["mode"] == keys.attributes["mode"]
        and width(q) == width(k)
        and width(q) % 2 == 0
        and max(bounds(x.shape)[0] for x in (q, k, v)) == bounds(q.shape)[0]
        and all(
            write.attributes.get("distinct", False) or bounds(q.shape)[0] == 1 for write in (keys, values)
        )
    )
    if not alike or context.facts.max_bindings < 8:
        return None
    k_form, v_form = (CACHE_TYPES[state.dtype.name] for state in (k_state, v_state))
    each = [max_elements((1, *x.shape[1:])) for x in (q, k, v)]
    units = 2, k_form.unit, v_form.unit
    n_q, n_k, n_v = (rows((q.shape[0], n // unit)) for n, unit in zip(each, units, strict=True))
    total = Count(n_q.factor + n_k.factor + n_v.factor, n_q.symbols)
    constants = {
        "MODE": str(rope.attributes["mode"]),
        "K_UNIT": k_form.unit, "STORE_K": k_form.store, "V_UNIT": v_form.unit, "STORE_V": v_form.store,
    }  # fmt: skip
    return per_element(
        rope_writes, total, constants, q=q, k=k, v=v, turns=table, cells=cells, out=rope, k_cache=keys,
        v_cache=values, n_q=n_q, n_k=n_k, n_v=n_v, q_width=each[0], k_width=each[1], v_width=each[2],
        head_dim=width(q), pairs=bounds(table.shape)[1], n_k_cells=rows(k_state.shape[:1]),
        n_v_cells=rows(v_state.shape[:1]),
    )  # fmt: skip


TOGETHER = Joint(frozenset(_OPS), _lower)
