"""Runs graphs of ops of one's own on a backend, beside their functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphml.compiler.compile import compile_graph
from graphml.ir.dtype import F32
from graphml.ir.graph import Graph
from graphml.ir.interpreter import interpret
from graphml.ir.language import Builder
from graphml.ir.op import Array
from graphml.ir.own_op import OwnOp
from graphml.loading import discovery

Results = Mapping[str, Array]


def run(
    own: OwnOp, x: Array, backend: str = "cpu", threads: int = 1, **attributes: Any
) -> tuple[Results, Results]:
    """The op's results, `r0`, ..., on a backend, and those of its function."""
    g = Builder(max_tokens=len(x))
    node = g.call(own, g.input("x", F32, (g.n_tokens, x.shape[1])), **attributes)
    graph = g.finish(**{f"r{i}": one for i, one in enumerate(g.results(node))})
    return run_graph(graph, {"x": x}, backend, threads)


def run_graph(
    graph: Graph, inputs: Mapping[str, Array], backend: str = "cpu", threads: int = 1
) -> tuple[Results, Results]:
    """The outputs of a graph on a backend, and by NumPy."""
    device = discovery.backend(backend).open(threads)
    try:
        program = compile_graph(graph, discovery.backend(backend), device, {}).program
        for name, value in inputs.items():
            program.inputs[name][...] = value
        dims = {"T": len(next(iter(inputs.values())))}
        found = {name: np.array(one) for name, one in program.run(dims, device.state(graph, dims)).items()}
    finally:
        device.close()
    return found, interpret(graph, inputs)
