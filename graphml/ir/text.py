"""The text form of a graph: one node a line; it parses back to the same graph.

Lines look like these; the origin (`from`, `at`) is left out if it is not known. Lines that begin with # are
comments.

output logits = %lm_head
%lm_head: f32[T<=512, 576] = mul_mat(%w.f32, %h) {} from ["w", "x"] at "llama.py":31
"""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import unquote

from graphml.errors import GraphError
from graphml.ir.dtype import dtype
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Attribute, Op, Type
from graphml.ir.shape import Dim, Symbol
from graphml.ir.source import Source

_STRING = r'"(?:[^"\\]|\\.)*"'
_LINE = re.compile(
    r"%(?P<name>\S*): (?P<type>\w+\[[^\]]*\]|\([^()]*\)) = (?P<op>\w+)\((?P<inputs>[^)]*)\)"
    r" (?P<attributes>\{.*?\})"
    rf"(?: from (?P<origin>\[(?:{_STRING}(?:, )?)*\]))?"
    rf"(?: at (?P<file>{_STRING}):(?P<line>\d+))?"
)
_TYPE = re.compile(r"(?P<dtype>\w+)\[(?P<shape>[^\]]*)\]")
_OUTPUT = re.compile(r"output (?P<name>\S*) = %(?P<node>\S*)")
_SHORT = 400  # characters of attributes that are remembered
_NUMBERS = {"inf": float("inf"), "nan": float("nan")}


def write(graph: Graph) -> str:
    """The graph as text."""
    return str(graph)


def _decode(name: str) -> str:
    return unquote(name, errors="surrogatepass")


def parse(text: str, ops: Mapping[str, Op]) -> Graph:
    """The graph of a text; `ops` are the known ops by name. A `GraphError` names the bad line."""
    nodes: dict[str, Node] = {}
    outputs: dict[str, tuple[str, int]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        output = _OUTPUT.fullmatch(line)
        if output is not None:
            outputs[_decode(output["name"])] = _decode(output["node"]), number
        elif line.strip() and not line.startswith("#"):
            node = _parse_line(line, number, nodes, ops)
            nodes[node.name] = node
    for name, (target, number) in outputs.items():
        if target not in nodes:
            raise GraphError(f"line {number}: output {name!r} is of an unknown node {target!r}")
    return Graph(tuple(nodes.values()), {name: nodes[target] for name, (target, _) in outputs.items()})


def unknown_op(name: str) -> str:
    """For an error: that there is no op of a name, and how one of one's own becomes known."""
    return f"unknown op {name!r}; GRAPHML_OPS names files that declare ops of one's own"


def _parse_line(line: str, number: int, nodes: Mapping[str, Node], ops: Mapping[str, Op]) -> Node:
    try:
        node = _parse_node(line, nodes, ops)
        if node.name in nodes:
            raise ValueError(f"a node is called {node.name!r} already")
    except KeyError as error:
        raise GraphError(f"line {number} is not a node (unknown name {error}): {line[:200]}") from None
    # Deep nesting ends Python's parser with one of the last two.
    except (ValueError, TypeError, SyntaxError, GraphError, RecursionError, MemoryError) as error:
        raise GraphError(f"line {number} is not a node ({error}): {line[:200]}") from None
    return node


def _parse_node(line: str, nodes: Mapping[str, Node], ops: Mapping[str, Op]) -> Node:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError("wanted '%name: dtype[shape] = op(inputs) {attributes}'")
    op = match["op"]
    if op not in ops:
        raise ValueError(unknown_op(op))
    inputs = [name.strip().removeprefix("%") for name in match["inputs"].split(",") if name.strip()]
    source = Source(json.loads(match["file"]), int(match["line"])) if match["file"] else None
    return Node(
        ops[op],
        tuple(nodes[_decode(name)] for name in inputs),
        parse_type(match["type"]),
        _decode(match["name"]),
        MappingProxyType(_parse_attributes(match["attributes"])),
        source,
        tuple(json.loads(match["origin"] or "[]")),
    )


def parse_type(text: str) -> Type:
    """A type from its `repr`: `f32[T<=8, 4]`, or of several results `(f32[4], i32[4])`."""
    if text.startswith("("):
        parts = re.split(r"(?<=\]), ", text[1:-1])
        return Type.of_parts([parse_type(part) for part in parts])
    match = _TYPE.fullmatch(text)
    if match is None:
        raise ValueError(f"wanted a type such as f32[8, 4]; got {text[:100]!r}")
    return Type(dtype(match["dtype"]), tuple(_parse_dim(d) for d in match["shape"].split(",") if d.strip()))


def _parse_dim(text: str) -> Dim:
    name, symbolic, bound = text.strip().partition("<=")
    size = int(bound if symbolic else name)
    if size < 0:
        raise ValueError(f"wanted a dimension of at least 0; got {size}")
    return Symbol(name, size) if symbolic else size


def _parse_attributes(text: str) -> Mapping[str, Attribute]:
    return _parse_short_attributes(text) if len(text) < _SHORT else _parse_any_attributes(text)


@functools.lru_cache(maxsize=1024)  # nodes of an op have mostly the same
def _parse_short_attributes(text: str) -> Mapping[str, Attribute]:
    return _parse_any_attributes(text)


def _parse_any_attributes(text: str) -> Mapping[str, Attribute]:
    body = ast.parse(text, mode="eval").body
    if not isinstance(body, ast.Dict):
        raise ValueError("wanted {name: value}")
    pairs = [
        (_parse_value(key), _parse_value(value)) for key, value in zip(body.keys, body.values, strict=True)
    ]
    if not all(isinstance(name, str) for name, _ in pairs):
        raise ValueError("wanted texts as names of attributes")
    return MappingProxyType({str(name): value for name, value in pairs})


def _parse_value(node: ast.expr | None) -> Attribute:
    """A number (`inf` and `nan` too), text, truth value or tuple of numbers; nothing is evaluated."""
    match node:
        case ast.Constant(value=int() | float() | str() as value):
            return value
        case ast.Name(id="inf" | "nan" as name):
            return _NUMBERS[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            positive = _parse_value(operand)
            if isinstance(positive, int | float):
                return -positive
        case ast.Tuple(elts=elements):
            values = [_parse_value(element) for element in elements]
            whole = tuple(value for value in values if isinstance(value, int))
            numbers = tuple(value for value in values if isinstance(value, int | float))
            if len(numbers) == len(values):
                return whole if len(whole) == len(values) else numbers
    raise ValueError(f"wanted a number, text or tuple of numbers; got {ast.unparse(node) if node else '**'}")
