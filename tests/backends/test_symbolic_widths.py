"""Rows whose width is the number of tokens: kernels that know widths beforehand leave them to NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from graphml.compiler.compile import compile_graph
from graphml.ir.dtype import F32
from graphml.ir.interpreter import interpret
from graphml.ir.language import Builder
from graphml.loading import discovery

ROWS = 6


@pytest.mark.parametrize("name", discovery.backend_names())
def test_ops_along_the_tokens_read_those_of_the_step_alone(name: str) -> None:
    backend = discovery.backend(name)
    if backend.unavailable() is not None:
        pytest.skip(f"{name}: {backend.unavailable()}")
    g = Builder(max_tokens=8)
    turned = g.permute(g.input("x", F32, (g.n_tokens, ROWS)), 1, 0)
    column = g.input("column", F32, (ROWS, 1))
    made = {
        "added": g.add(turned, column),
        "chosen": g.where(column, turned, column),
        **{op: getattr(g, op)(turned) for op in ("sum_rows", "max_rows", "cumsum", "softmax")},
        "normed": g.rms_norm(turned, None, 1e-5),
        "positions": g.scale(g.cast(g.positions, "f32"), 0.5),
    }
    graph, device = g.finish(**made), backend.open(None)
    try:
        program = compile_graph(graph, backend, device, {}).program
        for count in (8, 3):
            random = np.random.default_rng(count)
            given = {
                "x": random.standard_normal((count, ROWS)).astype(np.float32),
                "column": np.arange(-2, ROWS - 2, dtype=np.float32)[:, None],
                "positions": np.arange(count, dtype=np.int32),
            }
            for leaf, array in given.items():
                program.inputs[leaf][: len(array)] = array
            got = program.run({"T": count}, device.state(graph, {"T": count}))
            for key, wanted in interpret(graph, given).items():
                np.testing.assert_allclose(got[key], wanted, rtol=1e-5, atol=1e-5, err_msg=key)
    finally:
        device.close()
