"""Arrays and tensors of a caller as the weights of a graph: checked, and copied where they do not fit.

Knows a graph's leaves and NumPy; nothing of backends, files or PyTorch, whose tensors come by DLPack.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import graphml_quant
import numpy as np

from graphml.errors import UsageError
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.shape import bounds


def graph_weights(graph: Graph, weights: Mapping[str, Any]) -> dict[str, Array]:
    """The weights that a graph reads, by name, contiguous and in its dtypes; others are left out.

    A value is an array, a tensor or anything else with `__dlpack__`, of the weight's shape. Floating numbers
    become the weight's floating type, whole ones its whole type where they fit; bytes of a block format are
    uint8, their last dimension in bytes. UsageError for a missing weight, and for any other value.
    """
    leaves = graph.leaves("weight")
    missing = [name for name in leaves if name not in weights]
    if missing:
        raise UsageError(f"weights: the graph wants {missing[0]!r}; got {sorted(weights) or 'none'}")
    return {
        name: _stored(name, node, as_array(f"weights: {name}", weights[name]))
        for name, node in leaves.items()
    }


def as_array(what: str, value: Any) -> Array:
    """An array of a tensor or an array; UsageError that begins with `what` for anything else."""
    if isinstance(value, np.ndarray):
        return value
    if not hasattr(value, "__dlpack__"):
        raise UsageError(f"{what}: wanted an array or a tensor; got {type(value).__name__}")
    value = value.detach() if hasattr(value, "detach") else value
    if str(getattr(value, "dtype", "")) == "torch.bfloat16":  # which NumPy has no type for
        value = value.float()
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"{what}: wanted numbers in the processor's memory; got {error}") from None


def _stored(name: str, node: Node, array: Array) -> Array:
    shape, kind = bounds(node.shape), node.dtype
    wanted = f"weights: {name}: wanted {node.type}"
    got = f"got {array.dtype} {list(array.shape)}"
    if kind.numpy is None and array.dtype == np.uint8:
        in_bytes = (*shape[:-1], kind.bytes_for(shape[-1]))
        if array.shape != in_bytes:
            raise UsageError(f"{wanted}, as uint8 {list(in_bytes)}; {got}")
        return np.ascontiguousarray(array)
    if kind.numpy is None and kind.name != "bf16":
        raise UsageError(f"{wanted}, as uint8 of its blocks; {got}")
    if array.shape != shape or array.dtype.kind != (
        "i" if kind.numpy is not None and kind.numpy.kind == "i" else "f"
    ):
        raise UsageError(f"{wanted}; {got}")
    if kind.numpy is None:
        return graphml_quant.quantize(graphml_quant.formats()[kind.name], array.astype(np.float32))
    with np.errstate(over="ignore"):
        stored = np.ascontiguousarray(array, kind.numpy)
    fits = (
        np.array_equal(stored, array)
        if kind.numpy.kind == "i"
        else np.array_equal(np.isinf(stored), np.isinf(array))
    )
    if not fits:
        raise UsageError(f"{wanted}; got {array.dtype} with numbers that are beyond {kind.name}")
    return stored
