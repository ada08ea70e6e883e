"""Explains one node: its source, the result of each pass and fusion, its backend and its storage.

Knows documents alone, so the result is the same for a model and for a dump.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graphml.errors import UsageError, similar
from graphml.inspect.dumps.document import Document, Record
from graphml.inspect.dumps.node_names import as_node, nearest, printable
from graphml.passes.fusion import all_ops


def explain(document: Document, name: str, argument: str = "node") -> dict[str, Any]:
    """All facts of the document about the node called `name` after any pass; a `UsageError` if there is none.

    argument: which one the error names.

    Where no node has that name: a weight's without `.weight` is the node that multiplies by it, and one of
    llama.cpp's callbacks is the node of the same value.

    Keys: name, source, shape and dtype, `passes` (per pass the effect on it: `made`, `kept`, `changed`,
    `taken` into another or `gone`, with the nodes that it is or is in), `fusions` (applied, refused), `final`
    (the backend and storage of the value, None if no node of the last graph has it), `time_us`.
    """
    stages = [_stage(pass_, name) for pass_ in document["passes"]]
    known = [stage for stage in stages if stage["nodes"]]
    if not known:
        nodes = [node for pass_ in document["passes"] for node in pass_["nodes"]]
        reader = next((node["name"] for node in nodes if f"{name}.weight" in node["inputs"]), None)
        if reader is not None:
            return explain(document, reader, argument)
        names = {node["name"]: None for node in nodes if node["op"] != "weight"}
        meant = as_node(name, names)
        if meant != name and meant in names:
            return explain(document, meant, argument)
        if not similar(name, names):
            names |= {node["name"]: None for node in nodes}
        raise UsageError(f"{argument}: no node is called {name!r}; {nearest(name, names)}")
    for before, stage in zip([None, *stages], stages, strict=False):
        stage["became"] = _became(before, stage, name)
    first, last = known[0]["nodes"][0], stages[-1]["nodes"]
    log = document["fusions"]
    return {
        "name": name,
        "model": document["model"],
        "source": first["source"],
        "dtype": first["dtype"],
        "shape": first["shape"],
        "layer": first["layer"],
        "passes": stages,
        "fusions": {
            "applied": [entry for entry in log["applied"] if name in (entry["node"], *entry["covered"])],
            "refused": [entry for entry in log["refused"] if name in (entry["node"], entry["at"])],
        },
        "final": _final(document["passes"][-1], last[0]) if last else None,
        "time_us": _time(document, last),
    }


def _stage(pass_: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The node in a pass, or else the nodes that were made from it."""
    own = [node for node in pass_["nodes"] if node["name"] == name]
    taken = [node for node in pass_["nodes"] if name in node["origin"]]
    return {"pass": pass_["name"], "nodes": own or taken}


def _became(before: Mapping[str, Any] | None, stage: Mapping[str, Any], name: str) -> str:
    nodes = stage["nodes"]
    if not nodes:
        return "gone" if before is not None and before["nodes"] else "not there yet"
    if nodes[0]["name"] != name:
        return "taken"
    if before is None or not before["nodes"]:
        return "made"
    facts = ("op", "dtype", "shape", "inputs", "attributes")
    return "kept" if all(before["nodes"][0][fact] == nodes[0][fact] for fact in facts) else "changed"


def _final(last_pass: Mapping[str, Any], node: Record) -> dict[str, Any]:
    """The backend, storage and readers of the value."""
    nodes: Sequence[Record] = last_pass["nodes"]
    readers = [other["name"] for other in nodes if node["name"] in other["inputs"]]
    steps = {other["name"]: i for i, other in enumerate(nodes)}
    facts = ("name", "op", "dtype", "shape", "bytes", "backend", "fallback", "buffer", "workspace")
    return {
        **{fact: node[fact] for fact in facts},
        "kernels": node.get("kernels"),  # dumps of older versions have none
        "declared": node.get("declared"),  # only of ops of one's own
        "leaf": not node["inputs"],
        "step": steps[node["name"]],
        "steps": len(nodes),
        "readers": readers,
        "last_read": max((steps[reader] for reader in readers), default=None),
        "outputs": [output for output, target in last_pass["outputs"].items() if target == node["name"]],
        "storage": _storage(node, {other["name"]: other for other in nodes}),
    }


def _storage(node: Record, nodes: Mapping[str, Record]) -> str:
    """The storage of the value, in words."""
    op = all_ops().get(node["op"])
    if node["op"] == "weight":
        return "in the model file, mapped"
    if node["op"] == "state":
        return "in the session's state"
    if op is not None and op.is_write:
        return f"in the session's state {node['inputs'][op.writes]}, which it changes"
    buffer = node["buffer"]
    if buffer is None:
        return "not known"
    place = f"arena, bytes {buffer['offset']} to {buffer['offset'] + buffer['size']}"
    if op is not None and op.view:
        return f"{place}: a view on {node['inputs'][0]}"
    shared = [name for name in node["inputs"] if nodes[name]["buffer"] == buffer]
    return f"{place}: in place of {shared[0]}" if shared else place


def _time(document: Document, last: Sequence[Record]) -> float | None:
    times = document["overlays"].get("time_us", {})
    return next((times[node["name"]] for node in last if node["name"] in times), None)


def text(explanation: Mapping[str, Any]) -> str:
    """The explanation as lines."""
    rows: list[tuple[str, str]] = [("written in", explanation["source"] or "no line is known")]
    for stage in explanation["passes"]:
        rows.append((f"after {stage['pass']}", _stage_text(stage)))
    fusions = explanation["fusions"]
    for entry in fusions["applied"]:
        rows.append((f"fusion {entry['fusion']}", f"took {', '.join(entry['covered'])} into {entry['node']}"))
    for entry in fusions["refused"]:
        at = f" (at {entry['at']})" if entry["at"] not in (None, entry["node"]) else ""
        rows.append((f"fusion {entry['fusion']}", f"refused {entry['node']}: {entry['reason']}{at}"))
    final = explanation["final"]
    if final is None:
        rows.append(("at the end", "no node has this value"))
    else:
        if final["name"] != explanation["name"]:
            rows.append(("computed in", final["name"]))
        rows += _final_rows(final)
        if final["declared"]:
            rows.append(("op", final["declared"]))
    if explanation["time_us"] is not None:
        rows.append(("time", f"{explanation['time_us']:.3g} us"))
    width = max(len(title) for title, _ in rows)
    lines = [explanation["name"], *(f"  {title:{width}}  {said}" for title, said in rows)]
    return "".join(f"{printable(line)}\n" for line in lines)


def _stage_text(stage: Mapping[str, Any]) -> str:
    said = str(stage["became"])
    if said == "taken":
        return f"in {'; '.join(map(_what, stage['nodes']))}"
    if said == "kept" or not stage["nodes"]:
        return said
    return _what(stage["nodes"][0])


def _what(node: Record) -> str:
    shape = ", ".join(map(str, node["shape"]))
    return f"{node['name']} = {node['op']}({', '.join(node['inputs'])}): {node['dtype']}[{shape}]"


def _final_rows(final: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    if final["backend"] is not None:
        reason = f": {final['fallback']}" if final["fallback"] else ""
        step = "" if final["leaf"] else f", step {final['step'] + 1} of {final['steps']}"
        rows.append(("placed on", f"{final['backend']}{reason}{step}"))
    rows += [("calls", line) for line in final["kernels"] or ()]
    if final["bytes"]:
        rows.append(("size", f"{final['bytes']} bytes as the device lays it out"))
    rows.append(("stored", final["storage"]))
    if final["workspace"] is not None:
        rows.append(("workspace", f"{final['workspace']['size']} bytes at {final['workspace']['offset']}"))
    until = f", the last at step {final['last_read'] + 1}" if final["readers"] else ""
    rows.append(("read by", ", ".join(final["readers"]) + until if final["readers"] else "nobody"))
    if final["outputs"]:
        rows.append(("output", ", ".join(final["outputs"])))
    return rows
