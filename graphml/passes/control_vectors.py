"""Control vectors in a graph: a direction added to what each layer gives to the next.

After representation engineering (Zou et al. 2023, arXiv:2310.01405) as llama.cpp's `llama_adapter_cvec` does
it. Knows layers by the names of their nodes, `layers.N.`; nothing of files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from graphml.errors import UsageError
from graphml.ir.builder import infer_type
from graphml.ir.dtype import F32
from graphml.ir.graph import Graph, make_graph
from graphml.ir.node import Node
from graphml.ir.op import Array, Type
from graphml.ir.ops.elementwise import add
from graphml.ir.ops.leaf import weight_leaf

WITHOUT = ".without_control"  # suffix of a layer's result as it was; the sum has its name


@dataclass(frozen=True)
class ControlVectors:
    """directions: layer -> float32 [n_embd] that is added to what it gives. Equal when fingerprints are."""

    fingerprint: str
    directions: Mapping[int, Array] = field(compare=False, repr=False)

    def weight_name(self, layer: int) -> str:
        """The name of a direction's leaf in a graph."""
        return f"control.{self.fingerprint[:16]}.direction.{layer}"

    def arrays(self) -> dict[str, Array]:
        """Name of the leaf -> its array."""
        return {self.weight_name(layer): array for layer, array in self.directions.items()}


def controlled(graph: Graph, control: ControlVectors | None) -> Graph:
    """The graph with the directions added; UsageError for a layer that gives no value [T, n_embd] alone."""
    if control is None:
        return graph
    users = graph.users()
    results = {layer_result(users, layer, len(array)): layer for layer, array in control.directions.items()}
    order: list[Node] = []
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        new_node = replace(node, inputs=tuple(new[source] for source in node.inputs)) if node.inputs else node
        layer = results.get(node)
        if layer is not None:
            new_node = replace(new_node, name=node.name + WITHOUT)
            kind = Type(F32, (len(control.directions[layer]),))
            leaf = Node(weight_leaf, (), kind, control.weight_name(layer))
            order += [new_node, leaf]
            new_node = Node(add, (new_node, leaf), infer_type(add, [new_node.type, kind], {}), node.name)
        order.append(new_node)
        new[node] = new_node
    return make_graph(order, {name: new[node] for name, node in graph.outputs.items()})


def layer_result(
    users: Mapping[Node, Sequence[Node]], layer: int, n_embd: int, of: str = "control_vectors"
) -> Node:
    """The value of a layer that what comes after it reads. users: of each node, in order.

    UsageError, with the argument `of`, where it is not one alone.
    """
    prefix = f"layers.{layer}."
    outside = [
        node
        for node, readers in users.items()
        if node.name.startswith(prefix)
        and not node.op.is_write
        and any(not reader.name.startswith(prefix) for reader in readers)
    ]
    candidates = [node for node in outside if len(node.shape) == 2 and node.shape[1] == n_embd]
    if len(candidates) != 1 or len(outside) != 1:
        raise UsageError(
            f"{of}: wanted a layer {layer} that gives one value of {n_embd} numbers a token to "
            f"the next; it gives {', '.join(f'{node.name} {node.type}' for node in outside) or 'none'}"
        )
    return candidates[0]
