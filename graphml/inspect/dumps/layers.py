"""Layers of a graph: the layer of a node, and layers that are equal up to their number.

Knows names and the plain records of nodes; nothing of graphs.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

MAX_PERIOD = 8
"""The longest period of alternating kinds of layers that is found."""
_LAYER = re.compile(r"(?:^|(?<=\.))(layers|blk|cache)\.(\d+)(?=\.)")

Nodes = Sequence[Mapping[str, Any]]


@functools.lru_cache(maxsize=1 << 14)
def layer_of(name: str) -> int | None:
    """The layer in a node's name: 3 of `layers.3.q`, `blk.3.attn_q.weight` and `cache.3.k`."""
    match = _LAYER.match(name)
    return int(match[2]) if match else None


def renumbered(name: str, old: int, new: int | str) -> str:
    """The name with every occurrence of the layer number `old` replaced by `new`."""
    return _LAYER.sub(lambda m: f"{m[1]}.{new}" if int(m[2]) == old else m[0], name)


def equal_layers(passes: Sequence[Nodes]) -> list[dict[str, Any]]:
    """Runs of at least two neighbouring layers that are equal after every pass: first, layers, hash."""
    hashes: dict[int, str] = {}
    for nodes in passes:
        for layer, digest in layer_hashes(nodes).items():
            hashes[layer] = hashes.get(layer, "") + digest
    runs = []
    # Within a run, number minus index in the sorted list is constant.
    ordered = enumerate(sorted(hashes))
    for (_, joined), group in groupby(ordered, lambda item: (item[1] - item[0], hashes[item[1]])):
        layers = [layer for _, layer in group]
        if len(layers) > 1:
            digest = hashlib.sha256(joined.encode()).hexdigest()[:16]
            runs.append({"first": layers[0], "layers": layers, "hash": digest})
    return runs


def repeated_layers(nodes: Nodes) -> dict[int, list[int]]:
    """Layer -> the layers that it represents, if neighbours are equal or several kinds alternate.

    Of layers of the kinds a b b a b b, the first three represent two each. Layers that represent only
    themselves are omitted. Nodes after a run read its last layer; they then read the one that represents it.
    """
    hashes = layer_hashes(nodes)
    layers = sorted(hashes)
    represented: dict[int, list[int]] = {}
    at = 0
    while at < len(layers):
        tries = [(period, _repeats(layers, hashes, at, period)) for period in range(1, MAX_PERIOD + 1)]
        period, count = max(tries, key=lambda pair: (pair[0] * pair[1] if pair[1] > 1 else 1, -pair[0]))
        run = layers[at : at + period * count] if count > 1 else [layers[at]]
        if count > 1:
            represented |= {run[place]: run[place::period] for place in range(period)}
        at += len(run)
    return represented


def _repeats(layers: Sequence[int], hashes: Mapping[int, str], at: int, period: int) -> int:
    """How often the kinds of `period` layers repeat from an index in the sorted layers on."""
    size = 0
    for place in range(at, len(layers)):
        equal = size < period or hashes[layers[place]] == hashes[layers[place - period]]
        if layers[place] != layers[at] + size or not equal:
            break
        size += 1
    return size // period


def layer_hashes(nodes: Nodes) -> dict[int, str]:
    """Layer -> hash of its structure: ops, types, attributes, inputs and names without the layer's number.

    Values of its predecessor, or that no other layer reads, are hashed by type and by the order of first
    reading, so that the first layer equals the others; values that several layers read are hashed by name.
    """
    types = {node["name"]: [node["dtype"], node["shape"]] for node in nodes}
    readers = _reading_layers(nodes)
    lines: dict[int, list[str]] = {}
    outside: dict[int, dict[str, int]] = {}
    for node in nodes:
        layer = node["layer"]
        if layer is None:
            continue
        known = outside.setdefault(layer, {})
        inputs = [_seen(name, layer, known, readers, types) for name in node["inputs"]]
        facts = [node["op"], *types[node["name"]], inputs, node["attributes"], node["fallback"]]
        line = json.dumps([renumbered(node["name"], layer, "#"), *facts])
        lines.setdefault(layer, []).append(line)
    return {
        layer: hashlib.sha256(f"[{', '.join(sorted(layer_lines))}]".encode()).hexdigest()
        for layer, layer_lines in lines.items()
    }


def _reading_layers(nodes: Nodes) -> Counter[str]:
    """How many layers read each node."""
    pairs = {(name, node["layer"]) for node in nodes if node["layer"] is not None for name in node["inputs"]}
    return Counter(name for name, _ in pairs)


def _seen(
    name: str, layer: int, known: dict[str, int], readers: Counter[str], types: Mapping[str, Any]
) -> Any:
    """An input of a layer, independent of the layer's number."""
    of = layer_of(name)
    if of == layer:
        return renumbered(name, layer, "#")
    if (of is None and readers[name] > 1) or (of is not None and of != layer - 1):
        return name if of is None else [of - layer, renumbered(name, of, "#")]
    return [known.setdefault(name, len(known)), *types[name]]
