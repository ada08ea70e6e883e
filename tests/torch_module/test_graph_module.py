"""A graph as a module: its names, what weights and inputs may be, states, and what is refused."""

from __future__ import annotations

from typing import Any

import graphml_quant
import numpy as np
import pytest
import torch

import graphml
from graphml.errors import GraphError
from graphml.ir.dtype import F32, I32, dtype
from graphml.ir.graph import Graph
from graphml.ir.language import Builder


def small() -> Graph:
    g = Builder(max_tokens=8)
    x = g.input("x", F32, (g.n_tokens, 4))
    hidden = g.silu(g.mul_mat(g.weight("layers.0.up.weight", F32, (6, 4)), x, "up"))
    return g.finish(y=g.add(hidden, g.weight("layers.0.bias", F32, (6,))))


def test_weights_are_parameters_under_their_names() -> None:
    generator = np.random.default_rng(1)
    arrays = {"layers.0.up.weight": generator.standard_normal((6, 4), np.float32),
              "layers.0.bias": torch.ones(6), "unused": np.zeros(3, np.float32)}  # fmt: skip
    module = graphml.to_torch(small(), arrays)
    assert set(module.state_dict()) == {"layers.0.up.weight", "layers.0.bias"}
    assert module.weight("layers.0.bias").requires_grad
    x = generator.standard_normal((5, 4), np.float32)
    hidden = x @ arrays["layers.0.up.weight"].T
    wanted = hidden / (1 + np.exp(-hidden)) + 1
    for given in (x, torch.from_numpy(x), Lent(x)):
        assert np.allclose(module(x=given)["y"].detach().numpy(), wanted, atol=1e-6)
    module(x=x)["y"].square().sum().backward()
    assert module.weight("layers.0.up.weight").grad.abs().sum() > 0
    assert module.double()(x=x)["y"].dtype == torch.float64


class Lent:
    """What has `__dlpack__` alone."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **how: Any) -> Any:
        return self._array.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


def test_packed_weights_are_their_values() -> None:
    g = Builder(max_tokens=8)
    rows = g.input("rows", I32, (g.n_tokens,))
    graph = g.finish(y=g.rows(g.weight("table", dtype("q8_0"), (3, 32)), rows))
    values = np.random.default_rng(2).standard_normal((3, 32), np.float32)
    held = graphml_quant.quantize(graphml_quant.by_name("q8_0"), values)
    y = graphml.to_torch(graph, {"table": held})(rows=np.array([2, 0, 7], np.int32))["y"]
    plain = graphml_quant.dequantize(graphml_quant.by_name("q8_0"), held, (3, 32))
    assert np.array_equal(y.detach().numpy(), [plain[2], plain[0], np.zeros(32)])


def test_states_go_from_step_to_step_with_their_gradients() -> None:
    g = Builder(max_tokens=8, max_sequences=1)
    x = g.input("x", F32, (g.n_tokens, 3))
    y = g.ssm_conv(x, g.weight("taps", F32, (3, 2)), None, layer=0)
    module = graphml.to_torch(g.finish(y=y), {"taps": np.array([[1, 2], [3, 4], [5, 6]], np.float32)})
    whole = torch.arange(12.0).reshape(4, 3).requires_grad_()
    sequences = np.zeros(4, np.int32)
    at_once = module(x=whole, sequences=sequences, positions=np.arange(4, dtype=np.int32))["y"]
    (name,) = module.graph.leaves("state")
    states: dict[str, torch.Tensor] = {name: torch.zeros(1, 1, 3)}
    parts = [
        module(states, x=whole[a:b], sequences=sequences[a:b], positions=np.arange(a, b, dtype=np.int32))["y"]
        for a, b in ((0, 1), (1, 4))
    ]
    assert torch.equal(torch.cat(parts), at_once)
    assert states[name].tolist() == [[[9.0, 10.0, 11.0]]]
    (gradient,) = torch.autograd.grad(parts[1].sum(), whole)
    assert gradient[0].tolist() == [1.0, 3.0, 5.0]  # through the state


@pytest.mark.parametrize(
    ("weights", "inputs", "said"),
    [
        ({}, None, "weights: wanted 2 more, as layers.0.bias, layers.0.up.weight"),
        ({"layers.0.up.weight": np.zeros((4, 6), np.float32), "layers.0.bias": np.zeros(6, np.float32)}, None,
         "layers.0.up.weight: wanted a weight"),
        ({"layers.0.up.weight": "text", "layers.0.bias": np.zeros(6, np.float32)}, None, "wanted an array"),
        ({"layers.0.up.weight": np.zeros((6, 4), np.float32), "layers.0.bias": np.zeros(6, np.float32)}, {},
         "x: wanted the inputs x"),
        ({"layers.0.up.weight": np.zeros((6, 4), np.float32), "layers.0.bias": np.zeros(6, np.float32)},
         {"x": np.zeros((2, 4), np.float32), "z": np.zeros(2)}, "z: wanted the inputs x"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_its_name(weights: Any, inputs: Any, said: str) -> None:
    with pytest.raises(GraphError, match=said):
        graphml.to_torch(small(), weights)(**inputs)
