"""Compact encoding of a document: nodes as columns, equal values once, deflated, base64.

A pass's nodes become one list per key; equal values are stored once and referred to by index. `inputs` are
indices of nodes of the same pass (or names, if a document names a node that it does not contain). The page
decodes it in `assets/document.js`. Knows the keys `nodes` and `inputs`; nothing of the others.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Mapping, Sequence
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
