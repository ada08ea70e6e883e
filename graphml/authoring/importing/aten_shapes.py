"""ATen's ops that make, move, choose and count elements, in NumPy. Knows ops; nothing of graphs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = Any  # an array, or the number that a size is
Arguments = Mapping[str, Any]
KINDS: Mapping[str, type] = {
    "bool": np.bool_,
    "int64": np.int64,
    "int32": np.int32,
    "int16": np.int16,
    "int8": np.int8,
    "uint8": np.uint8,
    "complex64": np.complex128,
    "complex128": np.complex128,
}
FLOAT = np.float64


def cast(x: Array, kind: Any) -> Array:
    """X in a dtype by PyTorch's name; every float is one."""
    name = kind["text"] if isinstance(kind, Mapping) else kind
    if name is None:
        return x
    return np.asarray(x).astype(KINDS.get(name, FLOAT), copy=False)


def made(a: Arguments, fill: Any, size: Any) -> Array:
    """A new tensor."""
    filled = np.full(tuple(size), fill)
    kind = a.get("dtype")
    return cast(filled.astype(FLOAT) if kind is None and not isinstance(fill, bool) else filled, kind)


def like(a: Arguments, fill: Any) -> Array:
    """A new tensor of the shape, and unless it is named the dtype, of another."""
    of = np.asarray(a["self"])
    filled = np.full(of.shape, fill)
    return cast(filled, a["dtype"]) if a.get("dtype") else filled.astype(of.dtype)


def sliced(x: Array, dim: int, start: Any, end: Any, step: int = 1) -> Array:
    """Elements from start to end of a dimension."""
    index: list[Any] = [slice(None)] * x.ndim
    index[dim] = slice(start, None if end is None or end > 1 << 60 else end, step)
    return x[tuple(index)]


def expanded(x: Array, size: list[int]) -> Array:
    """Broadcast; -1 keeps a dimension."""
    shape = (1,) * (len(size) - x.ndim) + x.shape
    return np.broadcast_to(x, [old if new == -1 else new for old, new in zip(shape, size, strict=True)])


def _arange(a: Arguments) -> Array:
    start, end, step = a.get("start", 0), a["end"], a.get("step", 1)
    numbers = np.arange(start, end, step)
    return cast(numbers, a.get("dtype"))


def parts(x: Array, sizes: Any, dim: int) -> tuple[Array, ...]:
    """Consecutive parts of a dimension: of one size, or of several."""
    if isinstance(sizes, int):
        sizes = [sizes] * math.ceil(x.shape[dim] / sizes)
    return tuple(np.split(x, np.cumsum(sizes)[:-1], axis=dim))


def _indexed(a: Arguments) -> Array:
    where = [slice(None) if index is None else np.asarray(index) for index in a["indices"]]
    return a["self"][tuple(where)]


def _squeezed(a: Arguments) -> Array:
    x, dims = a["self"], a.get("dim")
    wanted = range(x.ndim) if dims is None else dims if isinstance(dims, list) else [dims]
    return np.squeeze(x, tuple(axis for axis in wanted if x.shape[axis] == 1))


def _triangle(a: Arguments, function: Callable[..., Array]) -> Array:
    return function(a["self"], a.get("diagonal", 0))


def unflattened(x: Array, dim: int, sizes: list[int]) -> Array:
    """A dimension as several."""
    dim %= x.ndim
    return x.reshape(*x.shape[:dim], *sizes, *x.shape[dim + 1 :])


def flattened(x: Array, start: int, end: int) -> Array:
    """Several dimensions as one."""
    start, end = start % x.ndim, end % x.ndim
    return x.reshape(*x.shape[:start], -1, *x.shape[end + 1 :])


def padded(a: Arguments) -> Array:
    """Constants around; pairs count from the last dimension."""
    pads = a["pad"]
    widths = [(0, 0)] * a["self"].ndim
    for i in range(0, len(pads), 2):
        widths[-1 - i // 2] = (pads[i], pads[i + 1])
    return np.pad(a["self"], widths, constant_values=a.get("value") or 0)


MOVES: Mapping[str, Callable[[Arguments], Any]] = {
    "view": lambda a: a["self"].reshape(a["size"]) if "size" in a else cast(a["self"], a["dtype"]),
    "_unsafe_view": lambda a: a["self"].reshape(a["size"]),
    "reshape": lambda a: a["self"].reshape(a["shape"] if "shape" in a else a["size"]),
    "flatten": lambda a: flattened(a["self"], a.get("start_dim", 0), a.get("end_dim", -1)),
    "unflatten": lambda a: unflattened(a["self"], a["dim"], a["sizes"]),
    "transpose": lambda a: np.swapaxes(a["self"], a["dim0"], a["dim1"]),
    "t": lambda a: a["self"].T,
    "numpy_T": lambda a: a["self"].T,
    "mT": lambda a: np.swapaxes(a["self"], -1, -2),
    "permute": lambda a: np.transpose(a["self"], a["dims"]),
    "movedim": lambda a: np.moveaxis(a["self"], a["source"], a["destination"]),
    "unsqueeze": lambda a: np.expand_dims(a["self"], a["dim"]),
    "squeeze": _squeezed,
    "expand": lambda a: expanded(a["self"], a["size"]),
    "expand_as": lambda a: np.broadcast_to(a["self"], a["other"].shape),
    "slice": lambda a: sliced(a["self"], a.get("dim", 0), a.get("start"), a.get("end"), a.get("step", 1)),
    "select": lambda a: np.take(a["self"], a["index"], axis=a["dim"]),
    "narrow": lambda a: sliced(a["self"], a["dim"], a["start"], a["start"] + a["length"]),
    "split": lambda a: parts(
        a["self"], a["split_size"] if "split_size" in a else a["split_sizes"], a.get("dim", 0)
    ),
    "split_with_sizes": lambda a: parts(a["self"], a["split_sizes"], a.get("dim", 0)),
    "chunk": lambda a: parts(
        a["self"], math.ceil(a["self"].shape[a.get("dim", 0)] / a["chunks"]), a.get("dim", 0)
    ),
    "unbind": lambda a: tuple(np.moveaxis(a["self"], a.get("dim", 0), 0)),
    "repeat_interleave": lambda a: np.repeat(a["self"], a["repeats"], a.get("dim")),
    "repeat": lambda a: np.tile(a["self"], a["repeats"]),
    "roll": lambda a: np.roll(a["self"], a["shifts"], tuple(a["dims"]) if a.get("dims") else None),
    "flip": lambda a: np.flip(a["self"], a["dims"]),
    "clone": lambda a: a["self"],
    "alias": lambda a: a["self"],
    "contiguous": lambda a: a["self"],
    "detach": lambda a: a["self"],
    "detach_": lambda a: a["self"],
    "lift_fresh_copy": lambda a: a["self"],
    "dropout": lambda a: a["input"],
    "type_as": lambda a: a["self"],
    "_to_copy": lambda a: cast(a["self"], a.get("dtype")),
    "to": lambda a: cast(a["self"], a.get("dtype")),
}
"""Ops whose result has the operand's elements in other places; `self` is the only tensor that is moved."""
SAME = (
    "clone",
    "alias",
    "contiguous",
    "detach",
    "detach_",
    "lift_fresh_copy",
    "dropout",
    "type_as",
    "_to_copy",
    "to",
)
SHAPES: Mapping[str, Callable[[Arguments], Any]] = {
    **MOVES,
    "sym_size": lambda a: a["self"].shape[a["dim"]],
    "cat": lambda a: np.concatenate([tensor for tensor in a["tensors"] if np.size(tensor)], a.get("dim", 0)),
    "stack": lambda a: np.stack(a["tensors"], a.get("dim", 0)),
    "arange": _arange,
    "zeros": lambda a: made(a, 0, a["size"]),
    "ones": lambda a: made(a, 1, a["size"]),
    "empty": lambda a: made(a, 0, a["size"]),
    "full": lambda a: made(a, a["fill_value"], a["size"]),
    "scalar_tensor": lambda a: cast(np.asarray(a["s"]), a.get("dtype")),
    "new_ones": lambda a: made({"dtype": a.get("dtype")}, True if a["self"].dtype == bool else 1, a["size"]),
    "new_zeros": lambda a: made({"dtype": a.get("dtype")}, 0, a["size"]),
    "new_full": lambda a: made({"dtype": a.get("dtype")}, a["fill_value"], a["size"]),
    "zeros_like": lambda a: like(a, 0),
    "ones_like": lambda a: like(a, 1),
    "full_like": lambda a: like(a, a["fill_value"]),
    "empty_like": lambda a: like(a, 0),
    "index": _indexed,
    "index_select": lambda a: np.take(a["self"], a["index"], axis=a["dim"]),
    "gather": lambda a: np.take_along_axis(a["self"], a["index"], a["dim"]),
    "scatter": lambda a: _scattered(a["self"], a["dim"], a["index"], a["src"] if "src" in a else a["value"]),
    "triu": lambda a: _triangle(a, np.triu),
    "tril": lambda a: _triangle(a, np.tril),
    "pad": padded,
    "constant_pad_nd": padded,
}
SIZE_ONLY = (
    "sym_size",
    "zeros_like",
    "ones_like",
    "full_like",
    "empty_like",
    "new_ones",
    "new_zeros",
    "new_full",
)
"""Ops that read the shape of a tensor alone."""


def _scattered(x: Array, dim: int, index: Array, values: Any) -> Array:
    scattered = x.copy()
    np.put_along_axis(scattered, index, values, dim)
    return scattered
