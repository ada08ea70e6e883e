"""Where the nodes of a model go, why, what crosses between backends, and what each device's arena takes.

Knows the header of the file only: nothing is lowered and no weight is read.
"""

from __future__ import annotations

from typing import Any

from graphml.backend import Backend
from graphml.engine.compile import prepare
from graphml.engine.executor import Executor
from graphml.engine.parts import PartsDevice, ReadyPart, arenas
from graphml.ir.graph import Graph
from graphml.ir.shape import resolve
from graphml.passes.cut import constants
from graphml.passes.place import Placement, layer_of, place


def describe_placement(executor: Executor) -> dict[str, Any]:
    """The placement of an executor's model as plain data, as `graphml placement --json` writes it.

    Keys: `backends`, `rules`, `parts` (backend, nodes, first, last), `nodes` (name, op, layer, backend, part,
    reason, refused), `copies` (name, source and target part and their backends, bytes), `crossing`
    (bytes of the copies from one backend to another; the others stay on their device),
    `devices` (backend, nodes, weight and state bytes, arenas).
    """
    n_batch = executor.n_batch
    _, decode, graph = _prepared(executor, 1)
    placement, prefill, _ = _prepared(executor, n_batch)
    cut = placement.cut
    part_of = {
        node.name: part.index for part in cut.parts for node in part.graph.nodes if node.op.name != "input"
    }
    crossing = [
        copy for copy in cut.copies if cut.parts[copy.source].backend != cut.parts[copy.target].backend
    ]
    layers = {node.name: layer_of(node) for node in graph.nodes}
    return {
        "backends": list(placement.backends),
        "rules": executor.options.place,
        "parts": [{"index": part.index, "backend": part.backend, **_span(part.graph)} for part in cut.parts],
        "nodes": [
            {
                "name": placed.name,
                "op": placed.op,
                "layer": layers.get(placed.name),
                "backend": placed.backend,
                "part": part_of.get(placed.name),
                "reason": placed.reason,
                "refused": placed.refused,
            }
            for placed in placement.places.values()
        ],
        "copies": [
            {
                "name": copy.name,
                "source": copy.source,
                "target": copy.target,
                "between": [cut.parts[copy.source].backend, cut.parts[copy.target].backend],
                "token_bytes": copy.token_bytes,
                "batch_bytes": copy.bound_bytes,
            }
            for copy in cut.copies
        ],
        "crossing": {
            "token_bytes": sum(copy.token_bytes for copy in crossing),
            "batch_bytes": sum(copy.bound_bytes for copy in crossing),
            "n_batch": n_batch,
        },
        "devices": [_device(executor, placement, name, decode, prefill) for name in placement.backends],
    }


def _prepared(executor: Executor, tokens: int) -> tuple[Placement, tuple[ReadyPart, ...], Graph]:
    backend, device = executor.backend, executor.device
    built = executor.build(tokens, 1)
    final, plan, _, trail = prepare(built, backend, device, executor.options)
    if trail.placement is not None:
        return trail.placement, trail.parts, built
    whole = ReadyPart(backend.name, final, plan)  # one backend: only what it refuses is to be told

    def shaped(graph: Graph, on: Backend) -> Graph:
        return prepare(graph, on, device)[0]

    assert not isinstance(device, PartsDevice)
    return place(built, [backend], (), shaped), (whole,), built


def _span(graph: Graph) -> dict[str, Any]:
    known = constants(graph)
    computed = [n for n in graph.nodes if n.op.family != "leaf" and not n.op.view and n not in known]
    return {"nodes": len(computed), "first": computed[0].name, "last": computed[-1].name}


def _device(
    executor: Executor,
    placement: Placement,
    name: str,
    decode: tuple[ReadyPart, ...],
    prefill: tuple[ReadyPart, ...],
) -> dict[str, Any]:
    weights: set[str] = set()
    state_bytes = 0
    for part in placement.cut.parts:
        if part.backend == name:
            weights |= set(part.graph.leaves("weight"))
    states = {node.name: node for part in placement.cut.parts for node in part.graph.leaves("state").values()}
    for state, node in states.items():
        if placement.places[state].backend == name:
            *lead, last = resolve(node.shape, {"C": 1})
            rows = 1
            for dim in lead:
                rows *= dim
            state_bytes += rows * node.dtype.bytes_for(last)
    return {
        "backend": name,
        "nodes": sum(_span(part.graph)["nodes"] for part in placement.cut.parts if part.backend == name),
        "weight_bytes": sum(executor.file.tensors[weight].n_bytes for weight in sorted(weights)),
        "state_bytes_per_token": state_bytes,
        "arena_decode": _arena(decode, name),
        "arena_prefill": _arena(prefill, name),
    }


def _arena(parts: tuple[ReadyPart, ...], name: str) -> dict[str, int]:
    peak, lower_bound = arenas(parts).get(name, (0, 0))
    return {"peak": peak, "lower_bound": lower_bound, "waste": peak - lower_bound}
