"""The text form of a graph: one node a line; it parses back to the same graph.

    output logits = %lm_head
    %x: f32[T<=512, 576] = mul_mat(%w.f32, %h) {} from [] at "llama.py":31
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import quote, unquote

from graphml.errors import GraphError
from graphml.ir.dtype import dtype
from graphml.ir.graph import Graph
from graphml.ir.node import Node, Source
from graphml.ir.op import Attribute, Op, Type
from graphml.ir.shape import Dim, Symbol

_LINE = re.compile(
    r"%(?P<name>\S+): (?P<dtype>\w+)\[(?P<shape>[^\]]*)\] = (?P<op>\w+)\((?P<inputs>[^)]*)\)"
    r" (?P<attributes>\{.*?\})(?: from (?P<origin>\[[^\]]*\]))?(?: at (?P<file>\"(?:[^\"\\]|\\.)*\"):(?P<line>\d+))?"
)
_NUMBERS = {"inf": float("inf"), "nan": float("nan")}


def write(graph: Graph) -> str:
    """The graph as text."""
    lines = [f"output {name} = {_show(node.name)}" for name, node in graph.outputs.items()]
    return "\n".join([*lines, *map(_write_node, graph.nodes)]) + "\n"


def _show(name: str) -> str:
    """A tensor's name may hold anything; what would end a name here is percent-encoded."""
    return "%" + quote(name, safe="./-_")


def _write_node(node: Node) -> str:
    attributes = "{" + ", ".join(f"{name!r}: {value!r}" for name, value in node.attributes.items()) + "}"
    origin = f" from {json.dumps(node.origin)}" if node.origin else ""
    source = f" at {json.dumps(node.source.file)}:{node.source.line}" if node.source else ""
    inputs = ", ".join(_show(source.name) for source in node.inputs)
    return f"{_show(node.name)}: {node.type} = {node.op.name}({inputs}) {attributes}{origin}{source}"


def parse(text: str, ops: Mapping[str, Op]) -> Graph:
    """The graph of a text; `ops` are the known ops by name. A `GraphError` names the bad line."""
    nodes: dict[str, Node] = {}
    outputs: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        if line.startswith("output "):
            name, _, target = line.removeprefix("output ").partition(" = %")
            outputs[name] = unquote(target)
            continue
        try:
            node = _parse_node(line, nodes, ops)
        except (KeyError, ValueError, SyntaxError, GraphError) as error:
            raise GraphError(f"line {number} is not a node ({error}): {line[:200]}") from None
        nodes[node.name] = node
    missing = [target for target in outputs.values() if target not in nodes]
    if missing:
        raise GraphError(f"output of an unknown node {missing[0]!r}")
    return Graph(tuple(nodes.values()), {name: nodes[target] for name, target in outputs.items()})


def _parse_node(line: str, nodes: Mapping[str, Node], ops: Mapping[str, Op]) -> Node:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError("wanted '%name: dtype[shape] = op(inputs) {attributes}'")
    if match["op"] not in ops:
        raise ValueError(f"unknown op {match['op']!r}")
    inputs = [nodes[unquote(name.strip().removeprefix("%"))] for name in match["inputs"].split(",") if name.strip()]
    source = Source(json.loads(match["file"]), int(match["line"])) if match["file"] else None
    shape = tuple(_parse_dim(dim) for dim in match["shape"].split(",") if dim.strip())
    return Node(
        ops[match["op"]],
        tuple(inputs),
        Type(dtype(match["dtype"]), shape),
        unquote(match["name"]),
        _parse_attributes(match["attributes"]),
        source,
        tuple(json.loads(match["origin"] or "[]")),
    )


def _parse_dim(text: str) -> Dim:
    name, symbolic, bound = text.strip().partition("<=")
    return Symbol(name, int(bound)) if symbolic else int(name)


def _parse_attributes(text: str) -> Mapping[str, Attribute]:
    def number(node: ast.expr) -> Attribute:
        if isinstance(node, ast.Name):
            return _NUMBERS[node.id]
        if isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Name):
            return -_NUMBERS[node.operand.id]
        value: Attribute = ast.literal_eval(node)
        return value

    body = ast.parse(text, mode="eval").body
    if not isinstance(body, ast.Dict):
        raise ValueError("wanted {name: value}")
    pairs = zip(body.keys, body.values, strict=True)
    return MappingProxyType({str(ast.literal_eval(key)): number(value) for key, value in pairs if key})
