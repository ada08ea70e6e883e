"""Builds the page: assets, document, and a content security policy that allows nothing else to run.

The document is packed: a pass's nodes become one list per key; equal values are stored once and referred to
by index. `inputs` are indices of nodes of the same pass (or names, if a document names a node that it does
not contain). The page decodes it in `assets/document.js`.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any


def encode(document: Mapping[str, Any]) -> str:
    """The document as base64 of raw deflate of columnar JSON: letters, digits, `+`, `/`, `=`."""
    values: dict[str, int] = {}
    packed = dict(document)
    packed["passes"] = [_packed_pass(pass_, values) for pass_ in document["passes"]]
    text = _json({"document": packed, "values": [json.loads(value) for value in values]})
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    return base64.b64encode(squeeze.compress(text.encode()) + squeeze.flush()).decode()


def _packed_pass(pass_: Mapping[str, Any], values: dict[str, int]) -> dict[str, Any]:
    nodes: Sequence[Mapping[str, Any]] = pass_["nodes"]
    places = {node["name"]: place for place, node in enumerate(nodes)}
    keys = dict.fromkeys(key for node in nodes for key in node)
    columns: dict[str, list[Any]] = {}
    for key in keys:
        if key == "inputs":
            columns[key] = [[places.get(name, name) for name in node.get(key, ())] for node in nodes]
        else:
            columns[key] = [_place(node.get(key), values) for node in nodes]
    return {
        **{key: value for key, value in pass_.items() if key != "nodes"},
        "size": len(nodes),
        "columns": columns,
    }


def _place(value: Any, values: dict[str, int]) -> int:
    return values.setdefault(_json(value), len(values))


def _json(value: Any) -> str:
    """JSON for every browser: numbers that JSON lacks become text."""
    return _ENCODER.encode(_finite(value))


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


FORMAT = "graphml-1"
# In the order in which they use each other.
SCRIPTS = (
    "document",
    "model",
    "layout",
    "changes",
    "overlay",
    "rail",
    "pane",
    "cards",
    "moves",
    "panel",
    "table",
    "memory",
    "fusions",
    "search",
    "keys",
    "main",
)


def render(document: Mapping[str, Any]) -> str:
    """The HTML page that draws a document of the format `graphml-1`.

    `view` in the document is the initial view, with the keys of the page's address: {"view": "compare",
    "overlay": "change", "pass": NAME, "left": NAME, "node": NAME}, all of them optional.

    The page is complete: it reads nothing from the network or from files, and its policy forbids it. Raises
    ValueError for another format and for a document without passes.
    """
    if document.get("format") != FORMAT:
        raise ValueError(f"document: wanted the format {FORMAT!r}; got {document.get('format')!r}")
    if not document.get("passes"):
        raise ValueError("document: wanted at least one pass; got none")
    style = _asset("base.css") + _asset("style.css")
    body = "\n".join(_asset(f"{name}.js") for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{body}\nstart();\n}})();\n'
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)};"
        " base-uri 'none'; form-action 'none'"
    )
    page = _asset("page.html")
    parts = {
        "POLICY": policy,
        "TITLE": html.escape(f"{document.get('model', 'graph')} - graphml"),
        "STYLE": style,
        "DOCUMENT": encode(document),
        "SCRIPT": script,
    }
    pieces = page.split("%%")
    # All marks are replaced in one go, so no text of the document is replaced.
    return "".join(parts[piece] if place % 2 else piece for place, piece in enumerate(pieces))


def _asset(name: str) -> str:
    return files("graphml.inspect.viewer").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
