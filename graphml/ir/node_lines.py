"""A node as a line of the text form; knows nothing of graphs. `graphml.ir.text` parses it."""

from __future__ import annotations

import json
import re
from urllib.parse import quote

from graphml.ir.node import Node
from graphml.ir.op import Attribute

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.~/+-]*")


def encoded(name: str) -> str:
    """Percent-encode the characters that would end a name; a tensor's name may contain anything."""
    if _PLAIN_NAME.fullmatch(name):
        return name
    return quote(name, safe="./-_+", errors="surrogatepass")


def shown(name: str) -> str:
    """A node's name where it is referred to."""
    return "%" + encoded(name)


def _literal(value: Attribute) -> str:
    """The `repr` of a value; NumPy's floats as plain ones."""
    return repr(float(value)) if isinstance(value, float) else repr(value)


def node_line(node: Node) -> str:
    """A node as a line, without its end."""
    attributes = (
        "{" + ", ".join(f"{name!r}: {_literal(value)}" for name, value in node.attributes.items()) + "}"
    )
    origin = f" from {json.dumps(node.origin)}" if node.origin else ""
    source = f" at {json.dumps(node.source.file)}:{node.source.line}" if node.source else ""
    inputs = ", ".join(shown(source.name) for source in node.inputs)
    return f"{shown(node.name)}: {node.type} = {node.op.name}({inputs}) {attributes}{origin}{source}"
