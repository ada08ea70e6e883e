"""Ops of a trace that are chains of simpler ones: whole powers as products, einsums of operands as pairs.

Knows a description; nothing of models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from graphml.authoring.importing.description import TracedModule, TracedNode
from graphml.authoring.importing.evaluation import op_name

HIGHEST = 8


def simpler_ops(description: TracedModule) -> TracedModule:
    """The description with chains in the places of such ops; the last of a chain has the op's name."""
    shapes: dict[str, Any] = {name: leaf.shape for name, leaf in description.inputs.items()}
    nodes: dict[str, TracedNode] = {}
    for node in description.nodes.values():
        for step in _steps(node, shapes):
            nodes[step.name] = step
            shapes[step.name] = step.shape
    return replace(description, nodes=nodes)


def _steps(node: TracedNode, shapes: Mapping[str, Any]) -> Iterator[TracedNode]:
    if op_name(node) == "pow" and isinstance(node.args.get("exponent"), int | float):
        yield from _power(node, float(node.args["exponent"]))
    elif op_name(node) == "einsum" and len(node.args["tensors"]) > 2:
        yield from _in_pairs(node, shapes)
    else:
        yield node


def _power(node: TracedNode, exponent: float) -> Iterator[TracedNode]:
    """x to the 3 is x squared times x, and so on."""
    base = node.args["self"]
    if not isinstance(base, Mapping) or exponent not in range(3, HIGHEST + 1):
        yield node
        return
    known: Any = base
    digits = f"{int(exponent):b}"[1:]
    for i, digit in enumerate(digits):
        is_last = i == len(digits) - 1
        name = node.name if is_last and digit == "0" else f"{node.name}_square_{i}"
        yield replace(node, name=name, args={"self": known, "exponent": 2})
        known = {"node": name}
        if digit == "1":
            name = node.name if is_last else f"{node.name}_power_{i}"
            yield replace(node, name=name, op="aten.mul.Tensor", args={"self": known, "other": base})
            known = {"node": name}


def _in_pairs(node: TracedNode, shapes: Mapping[str, Any]) -> Iterator[TracedNode]:
    """The first two operands, their product and the third; letters are summed as no later one has them."""
    text = node.args["equation"]
    equation = (text["text"] if isinstance(text, Mapping) else text).replace(" ", "")
    operands, _, result = equation.partition("->")
    letters, tensors = operands.split(","), list(node.args["tensors"])
    if not result or "." in equation or any(shapes[tensor["node"]] is None for tensor in tensors):
        yield node
        return
    sizes = {
        letter: size
        for each, tensor in zip(letters, tensors, strict=True)
        for letter, size in zip(each, shapes[tensor["node"]], strict=True)
    }
    while len(tensors) > 2:
        later = set("".join(letters[2:]) + result)
        kept = "".join(letter for letter in dict.fromkeys(letters[0] + letters[1]) if letter in later)
        name = f"{node.name}_pair_{len(tensors)}"
        pair = {"equation": f"{letters[0]},{letters[1]}->{kept}", "tensors": tensors[:2]}
        yield replace(node, name=name, args=pair, shape=tuple(sizes[letter] for letter in kept))
        letters, tensors = [kept, *letters[2:]], [{"node": name}, *tensors[2:]]
    yield replace(node, args={"equation": f"{letters[0]},{letters[1]}->{result}", "tensors": tensors})
