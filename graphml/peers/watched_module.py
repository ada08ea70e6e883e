"""Hooks on a PyTorch module: inputs and outputs of its linear modules, and the stream between its layers.

Knows nothing of graphml, nor of where modules come from; runs with any Python that has torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def rows(value: Any, count: int) -> Any:
    """An input or output of a module as f32 [T, n]; None for another kind or shape."""
    import torch

    if isinstance(value, tuple | list):
        value = value[0] if value else None
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return None
    if value.dim() == 3 and value.shape[0] == 1:
        value = value[0]
    return value.detach().float().numpy().copy() if value.dim() == 2 and len(value) == count else None


def watch(model: Any, count: int, layer_of: Callable[[str], int | None]) -> dict[str, Any]:
    """Hook all linear modules and layers; their values are collected in the returned dictionary.

    count: tokens. layer_of: the number of the layer that a module's path names; None where it is no layer.
    """
    values: dict[str, Any] = {}

    def keep(name: str, value: Any) -> None:
        array = rows(value, count)
        if array is not None:
            values[name] = array

    def linear(name: str) -> Any:
        def hook(module: Any, args: Any, outputs: Any) -> None:
            keep(f"{name}.in", args)
            keep(f"{name}.out", outputs)

        return hook

    def layer(index: int) -> Any:
        def hook(module: Any, args: Any, named: Any, outputs: Any) -> None:
            if index == 0:
                keep("stream.0", args or named.get("hidden_states"))
            keep(f"stream.{index + 1}", outputs)

        return hook

    for name, module in model.named_modules():
        if type(module).__name__ in ("Linear", "Conv1D"):
            module.register_forward_hook(linear(name))
        index = layer_of(name)
        if index is not None:
            module.register_forward_hook(layer(index), with_kwargs=True)
    return values
