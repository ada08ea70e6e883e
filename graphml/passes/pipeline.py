"""The passes between a graph as built and the graph that a device lowers: one list, in order.

A pass is a value. It is applied to a whole graph, or to each part of one that is placed on several backends
(decision 8). Knows backends by the ops that they run; nothing of devices, memory plans or weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from graphml.backend import Backend
from graphml.ir.graph import Graph
from graphml.ir.op import Op
from graphml.ir.own_op import OwnOp
from graphml.passes.activations import quantize_activations
from graphml.passes.fusion import fuse, fusions
from graphml.passes.fusion_log import FusionLog

Apply: TypeAlias = Callable[[Graph, Backend, Collection[str]], tuple[Graph, FusionLog]]


@dataclass(frozen=True)
class Pass:
    """A step of compilation that needs no weights.

    name: used in dumps and timings. apply: (graph, backend, names of the fusions that are on) -> the changed
    graph, and the log of fusions.
    """

    name: str
    apply: Apply


def has_kernels(backend: Backend, op: Op) -> bool:
    """Whether a backend has kernels for a fused op, its own or one that was declared with the op."""
    return op.name in backend.fused or (isinstance(op, OwnOp) and backend.name in op.kernels)


def _fuse(
    graph: Graph, backend: Backend, names: Collection[str], last: bool = False
) -> tuple[Graph, FusionLog]:
    """Apply the named fusions that the backend has kernels for."""
    supported = {f.replace for f in fusions().values() if has_kernels(backend, f.replace)}
    return fuse(graph, supported, names, backend.refuses, last)


def _quantize(graph: Graph, backend: Backend, names: Collection[str]) -> tuple[Graph, FusionLog]:
    return quantize_activations(graph, backend), FusionLog()


PASSES: tuple[Pass, ...] = (
    Pass("fuse", _fuse),
    Pass("quantize_activations", _quantize),
    Pass("fuse_quantized", _fuse),  # a value and its conversion in one kernel
    Pass("fuse_last", partial(_fuse, last=True)),  # fusions that join finished nodes
)


def apply_passes(graph: Graph, backend: Backend, names: Collection[str]) -> Graph:
    """The graph after all passes. names: the fusions that are on."""
    for graph_pass in PASSES:
        graph, _ = graph_pass.apply(graph, backend, names)
    return graph
