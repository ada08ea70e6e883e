"""Reads dumps: records and files back to graphs and documents.

A dump is untrusted: nothing in it is run, and errors name the invalid part.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphml.errors import GraphError, UsageError
from graphml.inspect.dumps.document import FORMAT, Document, Record, nodes_of
from graphml.ir.dtype import dtype
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Attribute, Op, Type
from graphml.ir.shape import Dim, Symbol
from graphml.ir.source import Source
from graphml.ir.text import parse, parse_type, unknown_op
from graphml.ir.verify import verify
from graphml.loading.own_ops import known_ops
from graphml.system.read_files import guarded, plain_text

MAX_BYTES = 1 << 28
_ODD = ("inf", "-inf", "nan")  # floats that JSON lacks


def graph_of(nodes: Sequence[Record], outputs: Mapping[str, str]) -> Graph:
    """The graph of records; a `GraphError` for invalid ones. Folders of sources are not known."""
    ops = known_ops()
    by_name: dict[str, Node] = {}
    for record in nodes:
        try:
            by_name[record["name"]] = _node(record, by_name, ops)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise GraphError(f"node {record.get('name')!r} of the dump cannot be read: {error!r}") from None
    missing = [name for name in outputs.values() if name not in by_name]
    if missing:
        raise GraphError(f"the dump has an output of an unknown node {missing[0]!r}")
    return Graph(tuple(by_name.values()), {output: by_name[name] for output, name in outputs.items()})


def _node(record: Record, by_name: Mapping[str, Node], ops: Mapping[str, Op]) -> Node:
    name = record["op"]
    if name not in ops:
        raise ValueError(unknown_op(name))
    op = ops[name]
    source = None
    if record["source"] is not None:
        file, _, line = record["source"].rpartition(":")
        source = Source(file, int(line))
    return Node(
        op,
        tuple(by_name[name] for name in record["inputs"]),
        _type(record),
        record["name"],
        {name: _attribute(op, name, value) for name, value in record["attributes"].items()},
        source,
        tuple(record["origin"]),
    )


def _type(record: Record) -> Type:
    kind = str(record["dtype"])
    if kind.startswith("("):  # of a node with several results
        return parse_type(kind)
    return Type(dtype(kind), tuple(_dim(dim) for dim in record["shape"]))


def _dim(dim: int | str) -> Dim:
    if isinstance(dim, int):
        return dim
    name, _, bound = dim.partition("<=")
    return Symbol(name, int(bound))


def _attribute(op: Op, name: str, value: Any) -> Attribute:
    """The attribute's value in a graph: lists become tuples, and "inf" and "nan" become floats."""
    if isinstance(value, list):
        return tuple(float(item) if item in _ODD else item for item in value)
    if value in _ODD and not isinstance(op.attributes.get(name), str):
        return float(value)
    if not isinstance(value, int | float | str):
        raise TypeError(f"attribute {name!r} is {value!r}")
    return value


def is_dump(path: Path) -> bool:
    """Whether a file begins as a dump does, in JSON or as text."""
    if not path.is_file():  # a pipe would block
        return False
    try:
        with path.open("rb") as file:
            start = file.read(64).lstrip()
    except OSError:
        return False
    return start.startswith((b"{", b"output ", b"%", b"#"))


def read_dump(path: Path) -> Document:
    """The document of a dump in JSON or text form; a `UsageError` or `GraphError` for anything else.

    A text has one pass, called `text`, and no backends, plans or fusions.
    """
    what = "not a dump of graphml"
    text = plain_text(path, UsageError, MAX_BYTES, what)
    with guarded(path, UsageError, what):
        if not text.lstrip().startswith("{"):
            return _from_text(path.name, text)
        document: Document = json.loads(text)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise UsageError(f"{path}: wanted a dump of the format {FORMAT!r}")
        try:
            for pass_ in document["passes"]:
                graph_of(pass_["nodes"], pass_["outputs"])
        except GraphError as error:
            raise UsageError(f"{path}: {what}: {error}") from None
        return document


def _from_text(name: str, text: str) -> Document:
    graph = verify(parse(text, known_ops()))
    pass_ = {
        "name": "text",
        "seconds": 0.0,
        "outputs": {output: node.name for output, node in graph.outputs.items()},
        "nodes": nodes_of(graph),
    }
    return {
        "format": FORMAT, "model": name, "backend": None, "versions": {}, "passes": [pass_], "collapsed": [],
        "fusions": {"applied": [], "refused": []}, "plan": None, "seconds": {}, "overlays": {},
    }  # fmt: skip
