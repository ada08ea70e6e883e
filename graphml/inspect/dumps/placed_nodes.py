"""Placement of a model's nodes, with reasons, copies between backends, and the arena of each device.

Knows the header of the file only: nothing is lowered and no weight is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from graphml.backend import Backend
from graphml.compiler.compile import prepare
from graphml.compiler.multi_device import PartsDevice
from graphml.compiler.partitions import ReadyPart, arenas
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.shape import resolve
from graphml.passes.cut import constants
from graphml.passes.place import Placement, place
from graphml.passes.placement_rules import layer_of
from graphml.runtime.programs.executor import Executor

ENCODER = "encoder."
"""Prefix of the names of an encoder's nodes, which may equal the decoder's."""


@dataclass(frozen=True)
class _Placed:
    """A graph of the model with its placement. parts: the compiled ones; first: the first one's number."""

    prefix: str
    graph: Graph
    placement: Placement
    parts: tuple[ReadyPart, ...]
    first: int

    def computed(self) -> Iterator[tuple[str, int, Node]]:
        """Backend, part and node of every node that a device computes: no leaf, no view, no constant."""
        for part in self.placement.cut.parts:
            for node in _computed(part.graph):
                yield part.backend, part.index + self.first, node


def describe_placement(executor: Executor) -> dict[str, Any]:
    """The placement of an executor's model as plain data, the output of `graphml placement --json`.

    Keys: `backends`, `rules`, `parts` (backend, nodes, first, last), `nodes` (name, op, layer, backend, part,
    reason, refused, and whether it is computed: a state, a view or a constant is not), `copies` (name, source
    and target part and their backends, bytes), `crossing` (bytes of the copies from one backend to another;
    the others stay on their device), `devices` (backend, computed nodes, bytes of weights and of state per
    token and per sequence, arenas).
    """
    n_batch = executor.n_batch
    decode = _placed(executor, executor.build(1, 1)).parts
    every = [_placed(executor, executor.build(n_batch, 1))]
    if executor.encodes:
        first = len(every[0].placement.cut.parts)
        every.append(_placed(executor, executor.build_encoder(n_batch), ENCODER, first))
    placement = every[0].placement
    cut = placement.cut
    crossing = [
        copy for copy in cut.copies if cut.parts[copy.source].backend != cut.parts[copy.target].backend
    ]
    return {
        "backends": list(placement.backends),
        "rules": executor.options.place,
        "parts": [
            {"index": part.index + placed.first, "backend": part.backend, **_span(part.graph)}
            for placed in every
            for part in placed.placement.cut.parts
        ],
        "nodes": [node for placed in every for node in _nodes(placed)],
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
        "devices": [_device(executor, every, name, decode) for name in placement.backends],
    }


def _placed(executor: Executor, built: Graph, prefix: str = "", first: int = 0) -> _Placed:
    backend, device = executor.backend, executor.device
    prepared = prepare(built, backend, device, executor.options)
    if prepared.placement is not None:
        return _Placed(prefix, built, prepared.placement, prepared.parts, first)
    whole = ReadyPart(
        backend.name, prepared.graph, prepared.plan
    )  # one backend: only the refused nodes are reported

    def shaped(graph: Graph, on: Backend) -> Graph:
        return prepare(graph, on, device).graph

    assert not isinstance(device, PartsDevice)
    return _Placed(prefix, built, place(built, [backend], (), shaped), (whole,), first)


def _computed(graph: Graph) -> list[Node]:
    known = constants(graph)
    return [n for n in graph.nodes if n.op.family != "leaf" and not n.op.view and n not in known]


def _span(graph: Graph) -> dict[str, Any]:
    computed = _computed(graph)
    return {"nodes": len(computed), "first": computed[0].name, "last": computed[-1].name}


def _nodes(placed: _Placed) -> Iterator[dict[str, Any]]:
    part_of = {
        node.name: part.index + placed.first
        for part in placed.placement.cut.parts
        for node in part.graph.nodes
        if node.op.name != "input"
    }
    layers = {node.name: layer_of(node) for node in placed.graph.nodes}
    computed = {node.name for _, _, node in placed.computed()}
    for choice in placed.placement.places.values():
        yield {
            "name": placed.prefix + choice.name,
            "op": choice.op,
            "layer": layers.get(choice.name),
            "backend": choice.backend,
            "part": part_of.get(choice.name),
            "computed": choice.name in computed,
            "reason": choice.reason,
            "refused": choice.refused,
        }


def _device(
    executor: Executor, every: list[_Placed], name: str, decode: tuple[ReadyPart, ...]
) -> dict[str, Any]:
    weights: set[str] = set()
    states: dict[str, Node] = {}
    for placed in every:
        for part in placed.placement.cut.parts:
            if part.backend == name:
                weights |= set(part.graph.leaves("weight"))
            leaves = part.graph.leaves("state").items()
            places = placed.placement.places
            states |= {state: leaf for state, leaf in leaves if places[state].backend == name}
    sizes = executor.pinned_sizes(executor.config.n_ctx) | {"C": 0}
    per_sequence = sum(_bytes(leaf, sizes) for leaf in states.values())
    # an encoder has a program and an arena of its own
    prefill = [_arena(placed.parts, name) for placed in every]
    return {
        "backend": name,
        "nodes": sum(backend == name for placed in every for backend, _, _ in placed.computed()),
        "weight_bytes": sum(executor.file.tensors[weight].n_bytes for weight in sorted(weights)),
        "state_bytes_per_token": sum(_bytes(leaf, sizes | {"C": 1}) for leaf in states.values())
        - per_sequence,
        "state_bytes_per_sequence": per_sequence,
        "arena_decode": _arena(decode, name),
        "arena_prefill": {key: sum(arena[key] for arena in prefill) for key in prefill[0]},
    }


def _bytes(state: Node, sizes: Mapping[str, int]) -> int:
    *lead, last = resolve(state.shape, sizes)
    return prod(lead) * state.dtype.bytes_for(last)


def _arena(parts: tuple[ReadyPart, ...], name: str) -> dict[str, int]:
    peak, lower_bound = arenas(parts).get(name, (0, 0))
    return {"peak": peak, "lower_bound": lower_bound, "waste": peak - lower_bound}
