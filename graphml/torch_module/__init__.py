"""Graphs as modules of PyTorch: the same nodes, each computed by torch, so that gradients go through them.

The only package that imports torch. It knows graphs, and what an open model builds; no backend, no kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphml.api.model import Model
from graphml.errors import UsageError
from graphml.ir.graph import Graph

if TYPE_CHECKING:
    from graphml.torch_module.graph_module import GraphModule
    from graphml.torch_module.model_module import ModelModule


def to_torch(source: Model | Graph, weights: Any = None) -> GraphModule | ModelModule:
    """A `torch.nn.Module` that computes what a model, or a graph, computes.

    source: an open model, whose module takes ids, int64 [T] or [B, T], and returns logits [..., T, n_vocab],
    or rows of embeddings; or a graph, whose module takes its inputs by name and returns its outputs.
    weights: of a graph, name -> array or tensor.
    The parameters are the weights in float32, of packed ones the values that they stand for, under their
    names in the file. `module.double()`, `module.to(device)`, `requires_grad_` and torch's optimisers work
    on them as on any module's. UsageError without PyTorch, and for weights beside a model.
    """
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError:
        raise UsageError("to_torch: torch is missing; pip install '.[authoring]' in a clone") from None
    if isinstance(source, Graph):
        from graphml.torch_module.graph_module import GraphModule

        return GraphModule(source, {} if weights is None else weights)
    if weights is not None:
        raise UsageError("weights: wanted none beside a model, which has its own")
    from graphml.torch_module.model_module import ModelModule

    return ModelModule(source)


__all__ = ["to_torch"]
