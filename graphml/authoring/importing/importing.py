"""From a description to an imported file: recognised, named, written. Knows the order of the steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from numpy.typing import NDArray

from graphml.authoring.importing.dependence import Dependence, classed
from graphml.authoring.importing.description import TracedModule, TracedNode
from graphml.authoring.importing.document import document
from graphml.authoring.importing.expressions import Expression
from graphml.authoring.importing.layers import Layered, layered
from graphml.authoring.importing.lengths import check_all_used, check_lengths
from graphml.authoring.importing.mapping import mapping
from graphml.authoring.importing.metadata import check_rope, rope_factors, traced_keys
from graphml.authoring.importing.naming import Named, names
from graphml.authoring.importing.numbers import Fields
from graphml.authoring.importing.places import COMPUTED, ParameterPlace, places, stored_as
from graphml.authoring.importing.recognition import recognised
from graphml.authoring.importing.region import Recognised
from graphml.authoring.importing.walk import Walk
from graphml.authoring.importing.writing import Writer
from graphml.errors import ArchitectureError
from graphml.ir.op_table import own_op
from graphml.ir.own_op import OwnOp

Array = NDArray[Any]
LEGEND = "T tokens, O output rows, D model width, N heads, K key-value heads, H head width, F hidden."


@dataclass(frozen=True, eq=False)
class Imported:
    """The text of the file, and how it was found. keys: of a GGUF file of the weights."""

    text: str
    architecture: str
    dependence: Dependence
    recognised: Mapping[str, Recognised]
    layers: Layered
    named: Named
    tensors: tuple[ParameterPlace, ...]
    keys: Mapping[str, Any]
    factors: Array | None
    made_by: Mapping[int, TracedNode]
    last: Expression  # which leaves the last of the traced layers

    @property
    def made_by_expression(self) -> list[Expression]:
        """The expressions of the first layer of each kind, and those outside the layers."""
        kinds = [expr for number in self.layers.firsts for expr in self.layers.layers[number]]
        everything = [*self.layers.before, *kinds, *self.layers.after]
        return [expr for expr in everything if id(expr) in self.made_by]

    @property
    def tied(self) -> bool:
        """Whether logits are products with the embedding."""
        used = {place.name: place.parameter for place in self.tensors if place.change != COMPUTED}
        return used.get("output.weight", "") == used.get("token_embd.weight")


def _own_ops(recognised_ops: Mapping[str, Recognised]) -> str:
    """What the file needs besides: where its ops of one's own are declared."""
    lines = []
    for name in dict.fromkeys(match.op for match in recognised_ops.values()):
        op = own_op(name)
        if isinstance(op, OwnOp):
            file = PurePath(op.declared.source.file).name
            lines.append(f"\n\nIts op {name} is declared in {file}: GRAPHML_OPS has to name that file.")
    return "".join(lines)


def import_description(description: TracedModule, held: Mapping[str, Callable[[], Array]]) -> Imported:
    """The file of a traced module. held: the checkpoint's tensors by name; none for a plain module."""
    dependence = classed(description)
    check_lengths(dependence)
    recognised_nodes = recognised(dependence)
    walk = Walk(dependence, recognised_nodes)
    layers = layered(walk.result())
    if not any(expr.op == "attend" for layer in layers.layers for expr in layer):
        raise ArchitectureError("no layer has attention: `graphml import` knows no recurrent models")
    named = names(layers, description)
    tensors = places(dependence, layers, named)
    writer = Writer(description, layers, named, Fields(description.config))
    functions = writer.functions()
    body = [writer.config_class(), functions]
    if description.config:
        check_all_used(dependence, tensors)
        check_rope(writer)
        parameters = [leaf.name for leaf in description.inputs.values() if leaf.kind == "parameter"]
        stored = stored_as(parameters, description.values, held)
        body.insert(0, mapping(writer, tensors, stored, list(held)))
    title = (
        f"{description.model_class}, imported by `graphml import`.\n\n{LEGEND}{_own_ops(recognised_nodes)}"
    )
    kind = str(description.config.get("model_type", "imported")).replace("_", "-")
    text = document(title, writer.imports, [block for block in body if block])
    keys, factors = traced_keys(writer), rope_factors(writer)
    made_by, last = walk.made_by, layers.leaving(-1)
    return Imported(
        text, kind, dependence, recognised_nodes, layers, named, tuple(tensors), keys, factors, made_by, last
    )
