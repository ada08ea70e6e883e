"""The pass that adds low-rank adapters to products."""

from __future__ import annotations

import numpy as np

from graphml.ir.dtype import F32
from graphml.ir.language import Builder
from graphml.passes.lora import Adapter, adapted

LAYERS, WIDTH = 200, 8


def test_a_deep_graph_of_gated_residuals_is_adapted_in_a_moment() -> None:
    """Each layer is reached by two paths: a search through all of them would not end."""
    g = Builder(max_tokens=4, max_outputs=4)
    x = g.input("x", F32, (g.n_tokens, WIDTH))
    names = [f"blk.{layer}.gated_up.weight" for layer in range(LAYERS)]
    for layer, name in enumerate(names):
        with g.scope(f"layers.{layer}"):
            gate = g.mul_mat(g.weight(f"blk.{layer}.gate.weight", F32, (WIDTH, WIDTH)), x)
            up = g.mul_mat(g.weight(name, F32, (WIDTH, WIDTH)), x)
            x = g.add(x, g.mul(g.silu(gate), up))
    graph = g.finish(out=x)
    pair = np.ones((2, WIDTH), np.float32), np.ones((WIDTH, 2), np.float32)
    made = adapted(graph, [Adapter("one", "a" * 64, dict.fromkeys(names, pair))])
    sums = [node for node in made.nodes if node.name.endswith(".without_adapters")]
    assert len(sums) == LAYERS
    assert {node.op.name for node in sums} == {"mul_mat"}
