"""Which conversions of activations are left to the products that want them, in programs of one row.

Each workgroup of these products makes the row again (`kernels/products/own_rows.py`); the node itself has no
dispatch, and what it reads must stay until the last of the products. Knows graphs and limits, no buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.shape import bounds, max_elements
from graphml_gpu.driver import Facts
from graphml_gpu.kernels import formats
from graphml_gpu.kernels.products.int8_quads import LANES
from graphml_gpu.kernels.products.int8_rows import PLANES
from graphml_gpu.language import Features

CONVERSION = "quantize"
CONVERSIONS = {
    CONVERSION: CONVERSION,
    "rms_norm_mul_quantize": "rms_norm",
    "layer_norm_mul_quantize": "layer_norm",
    "gelu_quantize": "gelu",
}
"""Op that converts -> what `kernels.products.own_rows.OwnRow` calls it."""
KINDS = {"rms_norm_mul": "rms_norm", "layer_norm_mul": "layer_norm", "gelu": "gelu"}
"""Op before a conversion -> what `kernels.products.own_rows.OwnRow` calls it."""
_PLACE_OF_ROW = {"linear": 1, "linears": 0, "mul_mat_glu": 2}
_WHOLE_SUBGROUP = 32
"""Lanes that a subgroup holds, whichever share of a row is chosen: sums then take little shared memory."""
_SHARED_BESIDE = {True: 2048, False: 6144}
"""Bytes of shared memory left for a product's sums, by whether subgroups are so large."""


@dataclass(frozen=True)
class RowSource:
    """How a row is made. kind: see `KINDS`. source: of what. scale, shift: of norms, where there are any."""

    kind: str
    source: Node
    scale: Node | None
    shift: Node | None
    eps: float

    @property
    def operands(self) -> tuple[Node, ...]:
        """What is read to make it."""
        return tuple(operand for operand in (self.source, self.scale, self.shift) if operand is not None)


def own_rows(
    graph: Graph, facts: Facts, features: Features, refuses: Callable[[Node], str | None]
) -> Mapping[Node, RowSource]:
    """The nodes that need no dispatch, and how those who read them make their rows.

    refuses: why a node has no kernel on the device.
    """
    if not features.subgroups or features.subgroup_min < LANES:
        return {}
    users: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        for source in node.inputs:
            users.setdefault(source, []).append(node)
    kept = set(graph.outputs.values())
    room = facts.shared_bytes - _SHARED_BESIDE[features.subgroup_min >= _WHOLE_SUBGROUP]
    rows = {
        node: _made_of(node)
        for node in graph.nodes
        if node.op.name in CONVERSIONS
        and node not in kept
        and max_elements(node.shape[:-1]) == 1
        and 4 * PLANES * bounds(node.shape)[-1] // 32 <= room
        and users.get(node)
        and all(_makes_it(user, node) and refuses(user) is None for user in users[node])
    }
    for node in [node for node, row in rows.items() if row.kind == CONVERSION]:
        before = node.inputs[0]
        alone = before not in kept and all(user in rows for user in users[before])
        if alone and before.op.name in KINDS and refuses(before) is None:
            rows[node] = rows[before] = _made_of(before)
    return rows


def also_read(rows: Mapping[Node, RowSource], graph: Graph) -> Mapping[Node, tuple[Node, ...]]:
    """What products read beside their operands: what the rows that they make are made of."""
    return {
        user: tuple(operand for node in user.inputs if node in rows for operand in rows[node].operands)
        for user in graph.nodes
        if user not in rows and any(node in rows for node in user.inputs)
    }


def _made_of(node: Node) -> RowSource:
    """A norm, an activation or a conversion as part of the row."""
    source, *rest = node.inputs
    eps = node.attributes.get("eps", 0.0)
    assert isinstance(eps, int | float)
    scale, shift = [*rest, None, None][:2]
    return RowSource({**KINDS, **CONVERSIONS}[node.op.name], source, scale, shift, float(eps))


def _makes_it(user: Node, node: Node) -> bool:
    """Whether a product makes the row: it stands where activations do, and all weights are integers.

    A gate of two formats is none: its second product may be one for many rows, which reads its activations.
    """
    place = _PLACE_OF_ROW.get(user.op.name)
    if place is None or [i for i, operand in enumerate(user.inputs) if operand is node] != [place]:
        return False
    weights = [operand for operand in user.inputs if operand.op.name == "weight" and len(operand.shape) == 2]
    if user.op.name == "mul_mat_glu" and user.inputs[0].dtype != user.inputs[1].dtype:
        return False
    return all(
        weight.dtype.name in formats.names() and formats.reader(weight.dtype.name).integers is not None
        for weight in weights
    )
