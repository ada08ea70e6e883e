"""Differences between two graphs: nodes added, removed and changed, matched by name, then by origin.

Knows plain records. A change that many layers share is reported once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphml.inspect.dumps.document import Document, Record
from graphml.inspect.dumps.layers import equal_layers, layer_of, renumbered
from graphml.inspect.dumps.node_names import printable
from graphml.inspect.dumps.selection import Selection

FORMAT = "graphml-diff-1"
_TOLD = ("op", "dtype", "shape", "inputs", "attributes", "backend", "fallback")


@dataclass(frozen=True)
class NodeChange:
    """A node of both graphs, by its names in each, and its differences: fact -> (in a, in b)."""

    name: str
    name_b: str
    facts: Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True)
class GraphTitles:
    """The titles of one of two graphs on a page: short for its tab, and in full."""

    name: str
    title: str


@dataclass(frozen=True)
class GraphDiff:
    """Two graphs compared. gone: removed node -> the nodes of b that were made from it, as far as known."""

    a: str
    b: str
    added: Sequence[Record]
    removed: Sequence[Record]
    changed: Sequence[NodeChange]
    equal: int
    gone: Mapping[str, Sequence[str]]
    outputs: tuple[Mapping[str, str], Mapping[str, str]]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.outputs[0] != self.outputs[1])

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "format": FORMAT,
            "a": self.a,
            "b": self.b,
            "different": bool(self),
            "equal": self.equal,
            "added": list(self.added),
            "removed": [{**node, "became": list(self.gone.get(node["name"], ()))} for node in self.removed],
            "changed": [
                {"name": change.name, "name_b": change.name_b,
                 "facts": {fact: list(values) for fact, values in change.facts.items()}}
                for change in self.changed
            ],
            "outputs": [dict(outputs) for outputs in self.outputs],
        }  # fmt: skip


def compare(a: Selection, b: Selection, titles: tuple[str, str] = ("a", "b")) -> GraphDiff:
    """Compare two selections. Nodes match by name, or if only one was made from the other."""
    nodes_a, nodes_b = ({node["name"]: node for node in selection.nodes} for selection in (a, b))
    pairs = {name: name for name in nodes_a if name in nodes_b}
    pairs |= _by_origin(nodes_a, nodes_b, pairs)
    matched = set(pairs.values())
    changed = []
    for name, other in pairs.items():
        facts = _facts(nodes_a[name], nodes_b[other], pairs)
        if facts or name != other:
            changed.append(NodeChange(name, other, facts))
    gone: dict[str, list[str]] = {}
    for node in b.nodes:
        for origin in node["origin"]:
            gone.setdefault(origin, []).append(node["name"])
    removed = [node for name, node in nodes_a.items() if name not in pairs]
    return GraphDiff(
        *titles,
        [node for name, node in nodes_b.items() if name not in matched],
        removed,
        changed,
        len(pairs) - len(changed),
        {node["name"]: gone[node["name"]] for node in removed if node["name"] in gone},
        (a.outputs, b.outputs),
    )


def both(
    document: Document,
    a: Selection,
    b: Selection,
    difference: GraphDiff,
    sides: tuple[GraphTitles, GraphTitles],
) -> Document:
    """A document with the two graphs as its passes, for the viewer; all else is that of b's document.

    `difference` has the result of `compare`: kind, the node's name in each graph, and the facts.
    """
    passes: list[Record] = [
        {
            "name": f"{letter}: {side.name}",
            "title": f"{letter}: {side.title}",
            "seconds": 0.0,
            "outputs": dict(selection.outputs),
            "nodes": list(selection.nodes),
        }
        for letter, selection, side in zip("ab", (a, b), sides, strict=True)
    ]
    return {
        **document,
        "passes": passes,
        "collapsed": equal_layers([pass_["nodes"] for pass_ in passes]),
        "difference": [
            *(_viewer_record("removed", node["name"], None) for node in difference.removed),
            *(_viewer_record("added", None, node["name"]) for node in difference.added),
            *(
                _viewer_record("changed", change.name, change.name_b, change.facts)
                for change in difference.changed
            ),
        ],
        "view": {"view": "compare", "overlay": "change"},
    }


def _viewer_record(
    kind: str, left: str | None, right: str | None, facts: Mapping[str, tuple[Any, Any]] | None = None
) -> Record:
    """A difference in the viewer's form; each fact with its name and its values in a and in b."""
    described = [[fact, *values] for fact, values in (facts or {}).items()]
    return {"kind": kind, "left": left, "right": right, "facts": described}


def _by_origin(a: Mapping[str, Record], b: Mapping[str, Record], known: Mapping[str, str]) -> dict[str, str]:
    """Nodes without a namesake whose origins agree, or of which one is the other's only origin."""
    free_a = {name: node for name, node in a.items() if name not in known}
    free_b = {name: node for name, node in b.items() if name not in set(known.values())}
    by_origin: dict[tuple[str, ...], list[str]] = {}
    for name, node in free_a.items():
        by_origin.setdefault(tuple(node["origin"]) or (name,), []).append(name)
    matches: dict[str, str] = {}
    for name, node in free_b.items():
        for candidate in by_origin.get(tuple(node["origin"]) or (name,), []):
            if candidate not in matches and a[candidate]["op"] == node["op"]:
                matches[candidate] = name
                break
    return matches


def _facts(a: Record, b: Record, pairs: Mapping[str, str]) -> dict[str, tuple[Any, Any]]:
    changed_facts = {}
    for fact in _TOLD:
        if fact in ("backend", "fallback") and None in (a["backend"], b["backend"]):
            continue  # not known on both sides
        left = [pairs.get(name, name) for name in a["inputs"]] if fact == "inputs" else a[fact]
        if left != b[fact]:
            changed_facts[fact] = a[fact], b[fact]
    return changed_facts


def text(difference: GraphDiff) -> str:
    """Lines with - for removed, + for added, ~ for changed nodes; those shared by layers appear once."""
    lines = [f"a: {difference.a}", f"b: {difference.b}"]
    lines += _shared((node["name"], _removed(node, difference.gone)) for node in difference.removed)
    lines += _shared((node["name"], [f"+ {node['name']}: {_what(node)}"]) for node in difference.added)
    lines += _shared((change.name, _changed(change)) for change in difference.changed)
    if difference.outputs[0] != difference.outputs[1]:
        left, right = ({name: f"%{node}" for name, node in outputs.items()} for outputs in difference.outputs)
        lines.append(f"~ outputs: {left} -> {right}")
    counts = (
        f"{len(difference.removed)} removed, {len(difference.added)} added, {len(difference.changed)} changed"
    )
    return "".join(f"{printable(line)}\n" for line in [*lines, f"{counts}, {difference.equal} equal"])


def _removed(node: Record, gone: Mapping[str, Sequence[str]]) -> list[str]:
    lines = [f"- {node['name']}: {_what(node)}"]
    if node["name"] in gone:
        lines[0] += f" -> in {', '.join(gone[node['name']])}"
    return lines


def _changed(change: NodeChange) -> list[str]:
    title = change.name if change.name == change.name_b else f"{change.name} -> {change.name_b}"
    lines = [f"~ {title}"]
    for fact, (left, right) in change.facts.items():
        if fact == "attributes":
            names = [name for name in {**left, **right} if left.get(name) != right.get(name)]
            lines += [
                f"    {name}: {_value_text(left.get(name))} -> {_value_text(right.get(name))}"
                for name in names
            ]
        else:
            lines.append(f"    {fact}: {_value_text(left)} -> {_value_text(right)}")
    return lines


def _value_text(value: Any) -> str:
    match value:
        case None:
            return "none"
        case str():
            return value
        case list():
            return "(" + ", ".join(map(str, value)) + ")"
    return json.dumps(value)


def _what(node: Record) -> str:
    return f"{node['op']}({', '.join(node['inputs'])}) {node['dtype']}[{', '.join(map(str, node['shape']))}]"


def _shared(described: Iterable[tuple[str, list[str]]]) -> list[str]:
    """The lines of each node; those that are the same for several layers once, with `#` for the number."""
    groups: dict[tuple[str, ...], list[tuple[int | None, list[str]]]] = {}
    for name, lines in described:
        layer = layer_of(name)
        key = lines if layer is None else [_without_number(line, layer) for line in lines]
        groups.setdefault(tuple(key), []).append((layer, lines))
    text_lines: list[str] = []
    for shared, members in groups.items():
        layers = [layer for layer, _ in members if layer is not None]
        if len(members) == 1 or len(layers) != len(members):
            text_lines += [line for _, lines in members for line in lines]
        else:
            text_lines += [f"{shared[0]}  (x {len(layers)}: # = {ranges(layers)})", *shared[1:]]
    return text_lines


def _without_number(line: str, layer: int) -> str:
    """The layer's number and that of the one before as `#` and `#-1`, in every name of a line."""
    words = line.replace("(", "( ").replace(",", " ,").replace(")", " )").split(" ")
    words = [renumbered(renumbered(word, layer, "#"), layer - 1, "#-1") for word in words]
    return " ".join(words).replace("( ", "(").replace(" ,", ",").replace(" )", ")")


def ranges(numbers: Sequence[int]) -> str:
    """`0 to 28, 30` for sorted numbers."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
