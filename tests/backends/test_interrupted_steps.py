"""What devices remember of a step, so as not to do it again, is right after an interrupted one, too."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from graphml_cpu.blocks import CpuPlaces
from graphml_cpu.device import SUPPORT
from graphml_gpu.parameters import DispatchNumbers, Parameters
from graphml_gpu.places import Inputs

from graphml.backend import Plan
from graphml.ir.dtype import F32, I32
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Array, Type
from graphml.ir.ops.leaf import input_leaf, state_leaf


class Device:
    """Memory of a device in NumPy; where `fails` is set, a write is interrupted behind its end."""

    def __init__(self) -> None:
        self.held: Array = np.zeros(1 << 14, np.uint8)
        self.fails = False
        self.driver = self
        self.facts = SimpleNamespace(offset_alignment=256, loop_turns=None)

    def buffer(self, owner: object, n_bytes: int, label: str) -> Any:
        return self.held

    def write(self, buffer: Array, offset: int, data: Array) -> None:
        buffer[offset : offset + data.size] = data
        if self.fails:
            raise KeyboardInterrupt


def test_inputs_of_a_gpu() -> None:
    device = Device()
    leaf = Node(input_leaf, (), Type(I32, (64,)), "tokens")
    inputs = Inputs(device, Graph((leaf,), {}))  # type: ignore[arg-type]
    tokens = inputs.arrays["tokens"]
    tokens[:] = 1
    inputs.upload()
    tokens[:] = 2
    device.fails = True
    with pytest.raises(KeyboardInterrupt):
        inputs.upload()
    device.fails = False
    tokens[:] = 1  # as before the interrupt: nothing seems to have changed
    inputs.upload()
    assert set(device.held[: tokens.nbytes].view(np.int32)) == {1}


def test_numbers_of_a_gpu() -> None:
    device = Device()
    one = DispatchNumbers("kernel", [("n", "u32")], {"n": lambda dims: dims["T"]}, (1, 1, 1))
    parameters = Parameters(device, [one])  # type: ignore[arg-type]
    parameters.prepare({"T": 1})
    device.fails = True
    with pytest.raises(KeyboardInterrupt):
        parameters.prepare({"T": 2})
    device.fails = False
    parameters.prepare({"T": 1})
    assert device.held.view(np.uint32)[0] == 1


class OneState:
    n_bytes = 0

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.arrays = {name: np.zeros(4, np.float32) for name in ("k", "v")}

    def array(self, name: str) -> Array:
        if name == self.fails:
            raise KeyboardInterrupt
        return self.arrays[name]


def test_addresses_of_the_cpu() -> None:
    leaves = tuple(Node(state_leaf, (), Type(F32, (4,)), name) for name in ("k", "v"))
    places = CpuPlaces(Graph(leaves, {}), Plan({}, {}, 0, 0), {}, {}, np.zeros(64, np.uint8), 1, SUPPORT)
    mine, others = OneState(), OneState(fails="v")
    places.bind({}, mine)
    with pytest.raises(KeyboardInterrupt):
        places.bind({}, others)
    places.bind({}, mine)
    assert list(places._state_slots[:2]) == [mine.array(name).ctypes.data for name in ("k", "v")]
