"""The reference backend: every op has its meaning as kernel; no plan, no threads.

Like llama.cpp it multiplies quantised weights with activations converted to the format's partner.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping

import graphml_quant
import numpy as np

from graphml.backend import Backend, Plan, Progress, State, StepTime, TakeTimes
from graphml.ir.activation_blocks import ACTIVATIONS
from graphml.ir.dtype import DType, dtype
from graphml.ir.graph import Graph
from graphml.ir.interpreter import evaluate
from graphml.ir.node import Node
from graphml.ir.op import Array, plain_bytes, text
from graphml.ir.ops.leaf import LEAVES, input_leaf, state_leaf, weight_leaf
from graphml.ir.ops.linear import dequantize
from graphml.ir.shape import Shape, bounds, resolve
from graphml.passes.expand import expand
from graphml.passes.fusion import fusions


def allocate(node: Node, shape: Shape, dims: Mapping[str, int]) -> Array:
    """Zeros for a state leaf or an input, as its dtype is held in NumPy."""
    sizes = resolve(shape, dims)
    if node.dtype.numpy is not None:
        return np.zeros(sizes, node.dtype.numpy)
    return np.zeros((*sizes[:-1], node.dtype.bytes_for(sizes[-1])), np.uint8)


class ReferenceState:
    """State leaves as NumPy arrays."""

    def __init__(self, graph: Graph, dims: Mapping[str, int]) -> None:
        self.arrays = {name: allocate(node, node.shape, dims) for name, node in graph.leaves("state").items()}

    @property
    def n_bytes(self) -> int:
        """Bytes of all states."""
        return sum(array.nbytes for array in self.arrays.values())

    def array(self, name: str) -> Array:
        """The array of one state."""
        return self.arrays[name]


class ReferenceProgram:
    """Interprets the graph; values that depend on weights alone are computed once and kept."""

    def __init__(self, graph: Graph, weights: Mapping[str, Array], decoded: Decoded) -> None:
        self._graph, self._decoded = graph, decoded
        self.inputs: dict[str, Array] = {
            name: np.zeros(bounds(node.shape), node.dtype.numpy)
            for name, node in graph.leaves("input").items()
        }
        self._constants: dict[Node, Array] = {
            node: weights[name] for name, node in graph.leaves("weight").items()
        }
        known = set(self._constants)
        self._each_step = [node for node in graph.nodes if node not in known]
        self._fixed: list[Node] = []  # known after the first step
        for node in self._each_step:
            if node.op not in LEAVES and known.issuperset(node.inputs):
                known.add(node)
                self._fixed.append(node)
        self._take: TakeTimes | None = None

    def time_steps(self, take: TakeTimes | None) -> None:
        """See `graphml.backend.TimedProgram`."""
        self._take = take

    def run(self, dims: Mapping[str, int], state: State) -> dict[str, Array]:
        """Run one step; see `graphml.backend.Program`."""
        values = dict(self._constants)
        times: list[StepTime] = []
        for node in self._each_step:
            if node.op is input_leaf:
                sizes = resolve(node.shape, dims)
                values[node] = self.inputs[node.name][tuple(slice(size) for size in sizes)]
            elif node.op is state_leaf:
                values[node] = state.array(node.name)
            else:
                begin = time.perf_counter()
                values[node] = self._decoded.of(node, values)
                if self._take is not None:
                    times.append(StepTime(node, (begin,), (time.perf_counter() - begin,), (0.0,)))
        if self._fixed:
            self._constants.update((node, values[node]) for node in self._fixed)
            self._each_step = [node for node in self._each_step if node not in self._constants]
            self._fixed = []
        if self._take is not None:
            self._take(dict(dims), lambda: times)
        return {name: values[node] for name, node in self._graph.outputs.items()}


class Decoded:
    """Weights in float32, one array for all programs of a device, as long as the stored one lives."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], Array] = {}

    def of(self, node: Node, values: Mapping[Node, Array]) -> Array:
        """The value of a node; of a stored weight the array that is known."""
        if node.op is not dequantize or node.inputs[0].op is not weight_leaf:
            return evaluate(node, values)
        stored = values[node.inputs[0]]
        key = id(stored), text(node.attributes, "from_dtype")
        if key not in self._known:
            self._known[key] = evaluate(node, values)
            weakref.finalize(stored, self._known.pop, key, None).atexit = False
        return self._known[key]

    def clear(self) -> None:
        """Let go of all."""
        self._known.clear()


class ReferenceDevice:
    """NumPy. Sizes are given for plans although none is followed."""

    def __init__(self) -> None:
        self._decoded = Decoded()

    def storage(self, node: Node) -> int:
        """Bytes of the value as NumPy holds it."""
        return sum(plain_bytes(kind) for kind in node.type.parts or (node.type,))

    def workspace(self, node: Node) -> int:
        """None is asked for."""
        return 0

    def lower(
        self, graph: Graph, plan: Plan, weights: Mapping[str, Array], progress: Progress
    ) -> ReferenceProgram:
        """The graph with its fused ops taken apart again, so that dequantised weights are found and kept."""
        return ReferenceProgram(expand(graph), weights, self._decoded)

    def state(self, graph: Graph, dims: Mapping[str, int]) -> ReferenceState:
        """Zeroed arrays."""
        return ReferenceState(graph, dims)

    def close(self) -> None:
        """Let go of decoded weights."""
        self._decoded.clear()


def _activation(weight: DType) -> DType | None:
    """What ggml multiplies weights of a format with, so that this backend says what llama.cpp would.

    Blocks of 32 have scales in float32, where ggml's Q8_0 and Q8_1 end at 8.3e6 (`activation_blocks`).
    """
    pair = graphml_quant.by_name(weight.name).activation if weight.is_format else None
    return dtype(ACTIVATIONS if pair == "q8_0" else pair) if pair else None


BACKEND = Backend(
    "reference",
    open=lambda threads: ReferenceDevice(),
    refuses=lambda node: None,
    fused=frozenset(fusion.replace.name for fusion in fusions().values()),
    activation=_activation,
)
