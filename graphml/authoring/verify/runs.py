"""Runs of a built graph in NumPy, and its places that other programs have too.

Values that runs have in common are computed once: an edited graph shares nodes with its original. Knows
graphs and an open model; nothing of the use of the values.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping

import numpy as np

from graphml.authoring.mistakes.edit import Places, product_of, tensor_of
from graphml.authoring.verify.record import PeerRecord
from graphml.errors import UsageError
from graphml.inspect.dumps.layers import layer_of
from graphml.ir.cell_groups import share_cells
from graphml.ir.cells import BLOCK_SIZE
from graphml.ir.graph import Graph
from graphml.ir.interpreter import evaluate
from graphml.ir.long_texts import long_values
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.shape import resolve
from graphml.loading.architecture import EMBEDDING
from graphml.runtime.programs.executor import Executor

KEPT_BYTES = 4 << 30  # of values that later runs may need again


def points(graph: Graph) -> dict[str, str]:
    """Names of places (see `record`) -> names of nodes, in the order of the graph."""
    nodes = {f"stream.{layer}": name for layer, name in _stream(graph).items()}
    ends = {node: name for name, node in Places.of(graph).last.items()}
    for node in graph.nodes:
        name = product_of(node)
        if node.op.name == "mul_mat" and name is not None and len(node.shape) == 2:
            stem = name.rpartition(".")[0]
            nodes.setdefault(f"{stem}.in", node.inputs[1].name)
        if node.name in ends and len(node.shape) == 2:
            nodes[f"{ends[node.name].rpartition('.')[0]}.out"] = node.name
    place = {node.name: i for i, node in enumerate(graph.nodes)}
    return dict(sorted(nodes.items(), key=lambda item: place[item[1]]))


def _stream(graph: Graph) -> dict[int, str]:
    """Layer -> the node of the residual stream before it; one more for the stream after the last.

    The stream is the last value of a layer with a row for each token that nodes outside the layer read.
    """
    widths = {node.shape[-1] for node in graph.nodes
              if node.op.name == "get_rows" and tensor_of(node.inputs[0]) == "token_embd.weight"}  # fmt: skip
    stream: dict[int, str] = {}
    for node in graph.nodes:
        layer = layer_of(node.name)
        for source in node.inputs:
            before = layer_of(source.name)
            rows = len(source.shape) == 2 and source.shape[-1] in widths and source.op.family != "leaf"
            if not rows or before == layer or source.op.name == "dequantize":
                continue
            if before is not None:
                stream[before + 1] = source.name
            elif layer == 0:
                stream[0] = source.name
    return stream


class RecordRuns:
    """Runs of a model on the tokens of a record: all in one step, with the logits of every one."""

    def __init__(self, executor: Executor, ids: tuple[int, ...]) -> None:
        embedding = executor.file.tensors.get(EMBEDDING)
        count, n_vocab = len(ids), embedding.shape[0] if embedding is not None else executor.config.n_vocab
        wrong = [token for token in ids if not 0 <= token < n_vocab]
        if wrong:
            raise UsageError(f"token {wrong[0]}: wanted ids below {n_vocab}, the model's vocabulary")
        if executor.encodes:
            raise UsageError(f"{executor.file.path}: wanted a decoder alone; this model has an encoder too")
        if count > 1 and executor.max_chunk < executor.n_batch:
            raise UsageError(
                f"{executor.file.path}: {executor.architecture.name} has states of its own, read and written "
                "token by token, and all tokens of a record are run in one step: wanted a record of one token"
            )
        self.ids = ids
        self.graph = executor.build(count, count)
        self.unused = sorted(set(executor.file.tensors) - set(self.graph.leaves("weight")))
        self.places = points(self.graph)  # an edited graph has the same names
        if "logits" not in self.graph.outputs:
            raise UsageError(f"{executor.file.path}: wanted a model that gives logits; this one embeds texts")
        n_blocks = -(-count // BLOCK_SIZE)
        places = np.arange(count, dtype=np.int32)
        self.dims = {"T": count, "O": count, "S": 1, "B": n_blocks, "C": n_blocks * BLOCK_SIZE}
        self.inputs: dict[str, Array] = {
            "tokens": np.asarray(ids, np.int32), "positions": places, "cells": places,
            "sequences": np.zeros(count, np.int32), "output_rows": places,
            "block_table": np.arange(n_blocks, dtype=np.int32)[None], "lengths": np.array([count], np.int32),
        }  # fmt: skip
        self.inputs |= long_values(executor.long_inputs, np.full(count, count), count)
        share_cells(self.graph.leaves("input"), self.inputs, self.dims)
        self.weights = executor.weights
        self._kept: dict[Node, Array] = {}
        self._kept_bytes = 0
        self._given: dict[str, Array] = {}  # the last ones, and cached values of the nodes after them
        self._behind: dict[Node, Array] = {}

    def values(
        self,
        graph: Graph,
        names: Iterable[str],
        arrays: Mapping[str, Array] | None = None,
        keep: bool = False,
    ) -> dict[str, Array]:
        """Values of nodes by name; arrays: values that replace those of some nodes for their readers.

        keep: cache the values for later runs of graphs with the same nodes.
        """
        seen = {node: arrays[node.name] for node in graph.nodes if node.name in arrays} if arrays else {}
        changed = _readers(graph, seen) if seen else set()
        behind = self._known_after(arrays) if arrays else {}
        by_name = _by_name(graph)
        wanted = {name: by_name[name] for name in names if name in by_name}
        needed: set[Node] = set()
        stack = list(wanted.values())
        while stack:
            node = stack.pop()
            if node not in needed and node not in (behind if node in changed else self._kept):
                needed.add(node)
                stack.extend(source for source in node.inputs if source not in seen)
        local: dict[Node, Array] = {}
        known = ChainMap(local, behind, self._kept)
        operands = known.new_child(seen)
        with np.errstate(all="ignore"):  # a tried edit may give NaN
            for node in graph.nodes:
                if node in needed:
                    local[node] = self._value(node, operands)
                    if keep or (node.op.name == "dequantize" and node not in changed):
                        self._keep(behind if node in changed else self._kept, node, local[node])
        return {name: known[node] for name, node in wanted.items()}

    def _known_after(self, arrays: Mapping[str, Array]) -> dict[Node, Array]:
        """The cached values of nodes after given ones, if the given ones are unchanged."""
        if arrays.keys() != self._given.keys() or any(
            arrays[name] is not a for name, a in self._given.items()
        ):
            self._kept_bytes -= sum(value.nbytes for value in self._behind.values())
            self._given, self._behind = dict(arrays), {}
        return self._behind

    def _value(self, node: Node, known: Mapping[Node, Array]) -> Array:
        if node.op.name == "weight":
            return self.weights[node.name]
        if node.op.name == "input":
            return self.inputs[node.name]
        if node.op.name == "state":  # every read begins with zeros, in a copy of its own
            sizes = resolve(node.shape, self.dims)
            if node.dtype.numpy is None:
                raise UsageError(f"{node.name}: wanted a cache of f32; got {node.dtype.name}")
            return np.zeros(sizes, node.dtype.numpy)
        if node.op.writes is not None:
            state = node.inputs[node.op.writes]
            return evaluate(
                node, {**{source: known[source] for source in node.inputs}, state: known[state].copy()}
            )
        return evaluate(node, known)

    def _keep(self, among: dict[Node, Array], node: Node, value: Array) -> None:
        if self._kept_bytes + value.nbytes <= KEPT_BYTES:
            among[node] = value
            self._kept_bytes += value.nbytes

    def record(self, by: str) -> PeerRecord:
        """The record of this model, with the values of all places."""
        places = self.places
        computed = self.values(self.graph, [*places.values(), "output:logits"], keep=True)
        values = {
            place: computed[name].astype(np.float32)
            for place, name in places.items()
            if _rows(computed[name], self)
        }
        return PeerRecord(by, self.ids, computed["output:logits"], values)


def part_before(graph: Graph, end: str) -> Graph:
    """The nodes that a node needs, and itself; edits of them are quicker to try than of the whole graph."""
    node = _by_name(graph).get(end)
    if node is None:
        return graph
    needed = {node}
    for ancestor in reversed(graph.nodes):
        if ancestor in needed:
            needed.update(ancestor.inputs)
    name = end.removeprefix("output:")
    return Graph(tuple([kept_node for kept_node in graph.nodes if kept_node in needed]), {name: node})


def _by_name(graph: Graph) -> dict[str, Node]:
    nodes = {node.name: node for node in graph.nodes}
    return nodes | {f"output:{name}": node for name, node in graph.outputs.items()}


def _readers(graph: Graph, seen: Mapping[Node, Array]) -> set[Node]:
    """The nodes that are computed from some, directly or not."""
    readers: set[Node] = set()
    read = set(seen)
    for node in graph.nodes:
        if not read.isdisjoint(node.inputs):
            readers.add(node)
            read.add(node)
    return readers


def _rows(array: Array, runs: RecordRuns) -> bool:
    return array.ndim == 2 and len(array) == len(runs.ids)
