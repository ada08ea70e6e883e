"""Arrays and tensors of a caller or a model file as a graph's weights and inputs: checked, copied if needed.

Knows a graph's leaves and NumPy; nothing of backends or PyTorch, whose tensors come by DLPack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import graphml_quant
import numpy as np

from graphml.errors import GraphError, UsageError
from graphml.ir.dtype import DType
from graphml.ir.graph import Graph
from graphml.ir.op import Array
from graphml.ir.shape import Symbol, bounds
from graphml.weights.tensor import Tensor


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
        name: _stored(f"weights: {name}", str(node.type), node.dtype, bounds(node.shape), weights[name])
        for name, node in leaves.items()
    }


def graph_inputs(graph: Graph, inputs: Mapping[str, Any]) -> tuple[dict[str, Array], dict[str, int]]:
    """The inputs of a graph in its dtypes, and the values of the symbols of its shapes.

    UsageError for an input that is missing, not known or of another shape or type; GraphError for a graph
    with states, or with a symbol that no input's shape tells.
    """
    leaves = graph.leaves("input")
    if states := graph.leaves("state"):
        raise GraphError(
            f"the graph keeps states, as {min(states)!r}: wanted program.run(dims, state), a device's state"
        )
    unknown_names, missing = sorted(inputs.keys() - leaves.keys()), sorted(leaves.keys() - inputs.keys())
    if unknown_names or missing:
        problem = (
            f"{unknown_names[0]}: no input of the graph" if unknown_names else f"{missing[0]}: is missing"
        )
        raise UsageError(f"{problem}: wanted the inputs {', '.join(sorted(leaves)) or 'none'}")
    arrays, dims = dict[str, Array](), dict[str, int]()
    for name, node in leaves.items():
        array = _as_array(name, inputs[name])
        shape = tuple(_size(dim, array, i, dims) for i, dim in enumerate(node.shape))
        arrays[name] = _stored(name, str(node.type), node.dtype, shape, array)
    unknown = [symbol for symbol in graph.symbols() if symbol not in dims]
    if unknown:
        raise GraphError(f"no input's shape tells {unknown[0]}: wanted program.run(dims, state)")
    return arrays, dims


def named_inputs(graph: Graph, in_order: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs that are in order by name; UsageError unless they are all that have no name."""
    names = [name for name in graph.leaves("input") if name not in named]
    if in_order and len(in_order) != len(names):
        wanted = f"{len(names)} in order ({', '.join(names) or 'none'}), or names"
        raise UsageError(f"inputs: wanted {wanted}; got {len(in_order)}")
    return dict(zip(names, in_order, strict=False))


def _size(dim: int | Symbol, array: Array, axis: int, dims: dict[str, int]) -> int:
    """What a dimension has to be: of a symbol what the first input of it has, up to its bound."""
    if not isinstance(dim, Symbol):
        return dim
    if axis < array.ndim and 0 < array.shape[axis] <= dim.bound:
        return dims.setdefault(dim.name, array.shape[axis])
    return dim.bound


def _as_array(what: str, value: Any) -> Array:
    """An array of a tensor or an array; UsageError that begins with `what` for anything else."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, Tensor):
        return value.numpy()
    if not hasattr(value, "__dlpack__"):
        raise UsageError(f"{what}: wanted an array or a tensor; got {type(value).__name__}")
    value = value.detach() if hasattr(value, "detach") else value
    if str(getattr(value, "dtype", "")) == "torch.bfloat16":  # which NumPy has no type for
        value = value.float()
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"{what}: wanted numbers in the processor's memory; got {error}") from None


def _stored(what: str, of: str, kind: DType, shape: tuple[int, ...], value: Any) -> Array:
    """The value in the leaf's dtype, contiguous. of: the leaf's type, as text."""
    if isinstance(value, Tensor) and kind.numpy is None and value.dtype == kind.name and value.shape == shape:
        value = value.data.reshape(*shape[:-1], -1)
    array, wanted = _as_array(what, value), f"{what}: wanted {of}"
    got = f"got {array.dtype} {list(array.shape)}"
    if kind.numpy is None and array.dtype == np.uint8:
        in_bytes = (*shape[:-1], kind.bytes_for(shape[-1]))
        if array.shape != in_bytes:
            raise UsageError(f"{wanted}, as uint8 {list(in_bytes)}; {got}")
        return np.ascontiguousarray(array)
    if kind.numpy is None and kind.name != "bf16":
        raise UsageError(f"{wanted}, as uint8 of its blocks; {got}")
    is_whole = kind.numpy is not None and kind.numpy.kind == "i"
    if array.shape != shape or array.dtype.kind not in ("iu" if is_whole else "f"):
        raise UsageError(f"{wanted}; {got}")
    if kind.numpy is None:
        return graphml_quant.quantize(graphml_quant.formats()[kind.name], array.astype(np.float32))
    with np.errstate(over="ignore"):
        stored = np.ascontiguousarray(array, kind.numpy)
    fits = (stored == array) if is_whole else (np.isinf(stored) == np.isinf(array))
    if not fits.all():
        raise UsageError(f"{wanted}; got {array.dtype} with numbers that are beyond {kind.name}")
    return stored
