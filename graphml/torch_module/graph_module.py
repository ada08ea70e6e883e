"""A graph as a module of PyTorch: its nodes one after the other, its weights as parameters.

Knows graphs and the table of meanings; nothing of models, tokens or sessions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from graphml.errors import GraphError
from graphml.ir.dtype import DType
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.ops.leaf import LEAVES, input_leaf, state_leaf, weight_leaf
from graphml.ir.ops.linear import decode
from graphml.ir.shape import bounds
from graphml.passes.expand import expand
from graphml.torch_module.ops import table

_WHOLE = {"i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64}


@contextmanager
def default_dtype(kind: torch.dtype) -> Iterator[None]:
    """Within, torch makes numbers of this type: what constants and tables of a graph become."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def as_tensor(name: str, value: Any) -> Tensor:
    """A tensor of an array, of a tensor or of anything with `__dlpack__`; GraphError for anything else."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.array(value))  # a copy: files are mapped to be read alone
    if hasattr(value, "__dlpack__"):
        return torch.from_dlpack(value)
    raise GraphError(f"{name}: wanted an array or a tensor; got {type(value).__name__}")


class GraphModule(nn.Module):  # type: ignore[misc]  # untyped where torch is missing
    """The graph of some nodes. `module(x=..., y=...)` returns the outputs by name.

    weights: name -> array as a backend takes it, of packed ones their bytes, or a tensor of plain numbers.
    The parameters are in float32, under the weights' names; `state_dict()` has them so. Whole numbers, as of
    tables of ids, are buffers. Fused nodes are computed by their parts.
    """

    def __init__(self, graph: Graph, weights: Mapping[str, Any]) -> None:
        super().__init__()
        self.graph = expand(graph)
        missing = sorted(self.graph.leaves("weight").keys() - weights.keys())
        if missing:
            raise GraphError(f"weights: wanted {len(missing)} more, as {', '.join(missing[:4])}")
        unknown = sorted(
            {node.op.name for node in self.graph.nodes if node.op not in LEAVES} - table().keys()
        )
        if unknown:
            raise GraphError(
                f"to_torch: {', '.join(unknown)}: an op of one's own has no meaning in PyTorch; wanted those "
                "of the language"
            )
        for name, node in self.graph.leaves("weight").items():
            self._add(name, _plain(name, node, weights[name]))

    def _add(self, name: str, value: Tensor) -> None:
        """Keep a weight where its name's parts lead, so that `state_dict` has it under its name."""
        *path, last = name.split(".")
        place: nn.Module = self
        for part in path:
            if part not in place._modules:
                place.add_module(part, nn.Module())
            inner = place._modules[part]
            assert inner is not None
            place = inner
        if value.is_floating_point():
            place.register_parameter(last, nn.Parameter(value))
        else:
            place.register_buffer(last, value)

    def weight(self, name: str) -> Tensor:
        """A weight by its name in the file."""
        *path, last = name.split(".")
        return getattr(self.get_submodule(".".join(path)), last)

    @property
    def dtype(self) -> torch.dtype:
        """The floating type that it computes in: that of its parameters."""
        return next((x.dtype for x in self.parameters()), torch.float32)

    @property
    def device(self) -> torch.device:
        """Where its parameters are."""
        return next((x.device for x in self.parameters()), torch.device("cpu"))

    def forward(self, states: dict[str, Tensor] | None = None, **inputs: Any) -> dict[str, Tensor]:
        """The outputs by name. states: name -> tensor, which gets the changed ones; None: zeros.

        GraphError for an input that is missing or not known.
        """
        wanted = self.graph.leaves("input").keys()
        if wanted != inputs.keys():
            wrong = sorted(wanted ^ inputs.keys())
            raise GraphError(f"{wrong[0]}: wanted the inputs {', '.join(sorted(wanted))}")
        held = {name: self._converted(name, value) for name, value in inputs.items()}
        with default_dtype(self.dtype):
            return self._run(held, {} if states is None else states)

    def _converted(self, name: str, value: Any) -> Tensor:
        tensor = as_tensor(name, value).to(self.device)
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def _run(self, inputs: Mapping[str, Tensor], states: dict[str, Tensor]) -> dict[str, Tensor]:
        values: dict[Node, Any] = {}
        roots: dict[Node, Node] = {}  # of a node that is a changed state: the state
        meanings = table()

        def value_of(node: Node) -> Any:
            return values[roots.get(node, node)]

        for node in self.graph.nodes:
            if node.op is input_leaf:
                values[node] = inputs[node.name]
            elif node.op is weight_leaf:
                values[node] = self.weight(node.name)
            elif node.op is state_leaf:
                values[node] = self._state(node, states)
            else:
                result = meanings[node.op.name]([value_of(source) for source in node.inputs], node.attributes)
                if node.op.writes is None:
                    values[node] = result
                    continue
                state = node.inputs[node.op.writes]
                root = roots.get(state, state)
                values[node], values[root] = result
                if node.op.is_write:
                    roots[node] = root
        states |= {name: values[node] for name, node in self.graph.leaves("state").items()}
        return {name: value_of(node) for name, node in self.graph.outputs.items()}

    def _state(self, node: Node, states: Mapping[str, Tensor]) -> Tensor:
        if node.name in states:
            return states[node.name]
        kind = node.dtype
        if kind.numpy is None:
            raise GraphError(f"{node.name}: wanted a state of plain numbers, as kv='f32'; got {kind.name}")
        plain = {"f32": self.dtype, "f16": torch.float16, **_WHOLE}[kind.name]
        return torch.zeros(bounds(node.shape), dtype=plain, device=self.device)


def _plain(name: str, node: Node, value: Any) -> Tensor:
    """A weight as a tensor of its node's shape: float32, or whole numbers. GraphError for another shape."""
    kind: DType = node.dtype
    if isinstance(value, Tensor) and value.is_floating_point():
        plain = value.detach().clone()
    else:
        array: Array = as_tensor(name, value).numpy()
        whole = kind.numpy is not None and kind.numpy.kind == "i"
        plain = torch.from_numpy(np.ascontiguousarray(array if whole else decode(array, kind)))
    if tuple(plain.shape) != bounds(node.shape):
        raise GraphError(f"{name}: wanted a weight {node.type}; got the shape {list(plain.shape)}")
    return plain
