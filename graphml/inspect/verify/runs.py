"""Runs of a graph as it was built, in NumPy, and the places in it that other programs know too.

Values that runs have in common are computed once: an edited graph shares its nodes with the one it came from.
Knows graphs and an open model; nothing of what is wanted of the values.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from graphml.engine.architecture import EMBEDDING
from graphml.engine.cache import PagedCache
from graphml.engine.executor import BLOCK_SIZE, Executor
from graphml.errors import UsageError
from graphml.inspect.layers import layer_of
from graphml.inspect.mistakes.edit import Places, product_of, tensor_of
from graphml.inspect.verify.record import Record
from graphml.ir.graph import Graph
from graphml.ir.interpreter import evaluate
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.ops.leaf import input_leaf
from graphml.ir.shape import resolve

KEPT_BYTES = 4 << 30  # of values that later runs may need again
GIVEN = "given:"


def points(graph: Graph) -> dict[str, str]:
    """Names of places (see `record`) -> names of nodes, in the order of the graph."""
    found = {f"stream.{layer}": name for layer, name in _stream(graph).items()}
    ends = {node: name for name, node in Places.of(graph).last.items()}
    for node in graph.nodes:
        name = product_of(node)
        if node.op.name == "mul_mat" and name is not None and len(node.shape) == 2:
            stem = name.rpartition(".")[0]
            found.setdefault(f"{stem}.in", node.inputs[1].name)
        if node.name in ends and len(node.shape) == 2:
            found[f"{ends[node.name].rpartition('.')[0]}.out"] = node.name
    place = {node.name: i for i, node in enumerate(graph.nodes)}
    return dict(sorted(found.items(), key=lambda item: place[item[1]]))


def _stream(graph: Graph) -> dict[int, str]:
    """Layer -> the node of the residual stream that it starts from; one more for what the last leaves.

    That is the last value of a row for each token that others than its own layer read.
    """
    widths = {node.shape[-1] for node in graph.nodes
              if node.op.name == "get_rows" and tensor_of(node.inputs[0]) == "token_embd.weight"}  # fmt: skip
    found: dict[int, str] = {}
    for node in graph.nodes:
        layer = layer_of(node.name)
        for source in node.inputs:
            before = layer_of(source.name)
            rows = len(source.shape) == 2 and source.shape[-1] in widths and source.op.family != "leaf"
            if not rows or before == layer or source.op.name == "dequantize":
                continue
            if before is not None:
                found[before + 1] = source.name
            elif layer == 0:
                found[0] = source.name
    return found


def forced(graph: Graph, given: Mapping[str, Array], inputs: dict[str, Array]) -> Graph:
    """The graph with values of nodes given to their readers; the nodes themselves are computed still.

    The given arrays go into `inputs`, under the names of the leaves that bring them.
    """
    seen: dict[Node, Node] = {}
    order: list[Node] = []
    for node in graph.nodes:
        sources = tuple(seen[source] for source in node.inputs)
        moved = node if sources == node.inputs else replace(node, inputs=sources)
        order.append(moved)
        seen[node] = moved
        if node.name in given:
            seen[node] = Node(input_leaf, (), node.type, GIVEN + node.name)
            inputs[GIVEN + node.name] = given[node.name]
            order.append(seen[node])
    outputs = {name: seen[node] for name, node in graph.outputs.items()}
    return Graph(tuple(order), outputs)


class Runs:
    """The tokens of a record run by a model: all in one step, logits of every one."""

    def __init__(self, executor: Executor, ids: tuple[int, ...]) -> None:
        embedding = executor.file.tensors.get(EMBEDDING)
        count, n_vocab = len(ids), embedding.shape[0] if embedding is not None else executor.config.n_vocab
        wrong = [one for one in ids if not 0 <= one < n_vocab]
        if wrong:
            raise UsageError(f"token {wrong[0]}: wanted ids below {n_vocab}, the model's vocabulary")
        if executor.encodes:
            raise UsageError(f"{executor.file.path}: wanted a decoder alone; this model has an encoder too")
        self.ids = ids
        self.graph = executor.build(count, count)
        self.unused = sorted(set(executor.file.tensors) - set(self.graph.leaves("weight")))
        self.places = points(self.graph)  # an edited graph calls its nodes the same
        if "logits" not in self.graph.outputs:
            raise UsageError(f"{executor.file.path}: wanted a model that gives logits; this one embeds texts")
        cache = PagedCache(count, BLOCK_SIZE)
        positions, cells = cache.append(0, count)
        self.dims = {"T": count, "O": count, "S": 1, "B": cache.table.shape[1], "C": cache.n_cells}
        self.inputs: dict[str, Array] = {
            "tokens": np.asarray(ids, np.int32), "positions": positions, "cells": cells,
            "sequences": np.zeros(count, np.int32), "wanted": np.arange(count, dtype=np.int32),
            "block_table": cache.table[:1].astype(np.int32),
            "lengths": np.array(cache.lengths, np.int32),
        }  # fmt: skip
        self.weights = executor.weights
        self._kept: dict[Node, Array] = {}
        self._kept_bytes = 0

    def values(
        self, graph: Graph, names: Iterable[str], given: Mapping[str, Array] | None = None, keep: bool = False
    ) -> dict[str, Array]:
        """What nodes are, by name; given: what readers of some nodes see in place of what these compute."""
        inputs = dict(self.inputs)
        if given:
            graph = forced(graph, given, inputs)
        by_name = {node.name: node for node in graph.nodes}
        by_name |= {f"output:{name}": node for name, node in graph.outputs.items()}
        wanted = {name: by_name[name] for name in names if name in by_name}
        needed: set[Node] = set()
        stack = list(wanted.values())
        while stack:
            node = stack.pop()
            if node not in needed and node not in self._kept:
                needed.add(node)
                stack.extend(node.inputs)
        local: dict[Node, Array] = {}
        known = ChainMap(local, self._kept)
        for node in graph.nodes:
            if node in needed:
                with np.errstate(all="ignore"):  # an edit that is tried may well give NaN
                    local[node] = self._value(node, known, inputs)
                if keep or node.op.name == "dequantize":
                    self._keep(node, local[node])
        return {name: known[node] for name, node in wanted.items()}

    def _value(self, node: Node, known: Mapping[Node, Array], inputs: Mapping[str, Array]) -> Array:
        if node.op.name == "weight":
            return self.weights[node.name]
        if node.op.name == "input":
            return inputs[node.name]
        if node.op.name == "state":  # every reading of it begins with zeros, and gets a copy of its own
            sizes = resolve(node.shape, self.dims)
            if node.dtype.numpy is None:
                raise UsageError(f"{node.name}: wanted a cache of f32; got {node.dtype.name}")
            return np.zeros(sizes, node.dtype.numpy)
        if node.op.writes is not None:
            state = node.inputs[node.op.writes]
            return evaluate(node, {**{one: known[one] for one in node.inputs}, state: known[state].copy()})
        return evaluate(node, known)

    def _keep(self, node: Node, value: Array) -> None:
        if not node.name.startswith(GIVEN) and self._kept_bytes + value.nbytes <= KEPT_BYTES:
            self._kept[node] = value
            self._kept_bytes += value.nbytes

    def record(self, by: str) -> Record:
        """What this model computes at all of its places."""
        places = self.places
        found = self.values(self.graph, [*places.values(), "output:logits"], keep=True)
        values = {
            place: found[name].astype(np.float32)
            for place, name in places.items()
            if _rows(found[name], self)
        }
        return Record(by, self.ids, found["output:logits"], values)


def _rows(array: Array, runs: Runs) -> bool:
    return array.ndim == 2 and len(array) == len(runs.ids)
