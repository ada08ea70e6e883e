"""What ATen's ops compute, in NumPy: numbers of every kind and along axes; ops that make and move elements.

Float casts do nothing, so that a description can be evaluated in float64. Knows ops; nothing of graphs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from graphml.authoring.importing.functions import erf, erfinv, gelu, sigmoid, softmax

Array = Any  # an array, or the number that a size is
Arguments = Mapping[str, Any]


def axes(dim: Any) -> Any:
    """A list of dimensions as NumPy has it; an empty one is all."""
    if isinstance(dim, list):
        return tuple(dim) if dim else None
    return dim


def layer_norm(a: Arguments) -> Array:
    """Over the last dimensions that `normalized_shape` counts."""
    x, over = a["input"], tuple(range(-len(a["normalized_shape"]), 0))
    centred = x - x.mean(over, keepdims=True)
    y = centred / np.sqrt((centred**2).mean(over, keepdims=True) + a.get("eps", 1e-5))
    y = y if a.get("weight") is None else y * a["weight"]
    return y if a.get("bias") is None else y + a["bias"]


def attention(a: Arguments) -> Array:
    """scaled_dot_product_attention."""
    q, k, v, mask = a["query"], a["key"], a["value"], a.get("attn_mask")
    scale = a["scale"] if a.get("scale") is not None else q.shape[-1] ** -0.5
    if a.get("enable_gqa"):
        times = q.shape[-3] // k.shape[-3]
        k, v = np.repeat(k, times, -3), np.repeat(v, times, -3)
    scores = q @ np.swapaxes(k, -1, -2) * scale
    if a.get("is_causal"):
        mask = np.tril(np.ones(scores.shape[-2:], bool))
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    return softmax(scores, -1) @ v


def _topk(a: Arguments) -> tuple[Array, Array]:
    x, k, dim = a["self"], a["k"], a.get("dim", -1)
    order = np.argsort(-x if a.get("largest", True) else x, axis=dim, kind="stable")
    ids = np.take(order, np.arange(k), axis=dim)
    return np.take_along_axis(x, ids, dim), ids


def _divided(a: Arguments) -> Array:
    quotient = np.true_divide(a["self"], a["other"])
    mode = a.get("rounding_mode")
    return np.floor(quotient) if mode == "floor" else np.trunc(quotient) if mode == "trunc" else quotient


def _addmm(a: Arguments) -> Array:
    product = np.matmul(*((a["mat1"], a["mat2"]) if "mat1" in a else (a["batch1"], a["batch2"])))
    return a.get("beta", 1) * a["self"] + a.get("alpha", 1) * product


def _clamp(a: Arguments) -> Array:
    low, high = a.get("min"), a.get("max")
    x = a["self"] if low is None else np.maximum(a["self"], low)
    return x if high is None else np.minimum(x, high)


def _linear(a: Arguments) -> Array:
    y = a["input"] @ np.swapaxes(a["weight"], -1, -2)
    return y if a.get("bias") is None else y + a["bias"]


def _conv1d(a: Arguments) -> Array:
    """Of [.., channels, T]; each output channel reads the input channels of its group."""
    x, weight, groups = a["input"], a["weight"], a.get("groups", 1)
    (stride,), (padding,), (apart,) = (
        a.get(name) or [default] for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))
    )
    x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(padding, padding)])
    count = x.shape[-1] - apart * (weight.shape[-1] - 1)
    taps = np.stack([x[..., i * apart : i * apart + count : stride] for i in range(weight.shape[-1])], -1)
    parts = taps.reshape(*x.shape[:-2], groups, -1, *taps.shape[-2:])
    matrix = weight.reshape(groups, -1, *weight.shape[1:])
    y = np.einsum("...gctk,gdck->...gdt", parts, matrix).reshape(*x.shape[:-2], -1, taps.shape[-2])
    return y if a.get("bias") is None else y + a["bias"][:, None]


def _variance(a: Arguments) -> Array:
    free = a.get("correction", 1) if "unbiased" not in a else int(a["unbiased"])
    return np.var(a["self"], axis=axes(a.get("dim")), keepdims=a.get("keepdim", False), ddof=free)


def _power(x: Any, exponent: Any) -> Array:
    return np.power(np.asarray(x, np.float64) if not isinstance(x, np.ndarray) else x, exponent)


def _along(function: Callable[..., Array]) -> Callable[[Arguments], Array]:
    return lambda a: function(a["self"], axis=axes(a.get("dim")), keepdims=a.get("keepdim", False))


def _extreme(of_all: Callable[..., Array], place: Callable[..., Array], of_two: Callable[..., Array]) -> Any:
    """The largest or smallest: of two values, of all numbers, or of a dimension, and where it is."""

    def extreme(a: Arguments) -> Any:
        if "other" in a:
            return of_two(a["self"], a["other"])
        if a.get("dim") is None:
            return of_all(a["self"])
        keep = bool(a.get("keepdim"))
        return tuple(function(a["self"], axis=a["dim"], keepdims=keep) for function in (of_all, place))

    return extreme


def _unary(function: Callable[[Array], Array]) -> Callable[[Arguments], Array]:
    return lambda a: function(a["self"])


def _binary(function: Callable[[Array, Array], Array]) -> Callable[[Arguments], Array]:
    return lambda a: function(a["self"], a["other"])


def _sqrt(x: Array) -> Array:
    """NaN of numbers below 0, which random values may be."""
    with np.errstate(invalid="ignore"):
        return np.sqrt(x)


UNARY: Mapping[str, Callable[[Array], Array]] = {
    "neg": np.negative,
    "cos": np.cos,
    "sin": np.sin,
    "tanh": np.tanh,
    "exp": np.exp,
    "log": np.log,
    "sqrt": _sqrt,
    "abs": np.abs,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "relu": lambda x: np.maximum(x, 0),
    "erf": erf,
    "erfinv": erfinv,
    "square": np.square,
    "logical_not": np.logical_not,
    "bitwise_not": np.logical_not,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.round,
    "sign": np.sign,
    "log1p": np.log1p,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "softplus": lambda x: np.logaddexp(0.0, x),
    "expm1": np.expm1,
    "mish": lambda x: x * np.tanh(np.logaddexp(0.0, x)),
    "relu6": lambda x: np.clip(x, 0, 6),
    "log_sigmoid": lambda x: -np.logaddexp(0.0, -x),
    "hardtanh": lambda x: np.clip(x, -1, 1),
    "hardsigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "hardswish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
}
BINARY: Mapping[str, Callable[[Array, Array], Array]] = {
    "mul": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "floor_divide": np.floor_divide,
    "remainder": np.mod,
    "fmod": np.fmod,
    "__and__": np.logical_and,
    "__or__": np.logical_or,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "matmul": np.matmul,
    "__xor__": np.bitwise_xor,
}


def _norm_but(x: Array, dim: int) -> Array:
    """The norm over all dimensions but one; over all where dim is -1."""
    others = tuple(i for i in range(x.ndim) if i != dim)
    return np.sqrt((x**2).sum(others, keepdims=True))


NUMBERS: Mapping[str, Callable[[Arguments], Any]] = {
    **{name: _unary(function) for name, function in UNARY.items()},
    **{name: _binary(function) for name, function in BINARY.items()},
    "add": lambda a: a["self"] + a["other"] * a.get("alpha", 1),
    "sub": lambda a: a["self"] - a["other"] * a.get("alpha", 1),
    "rsub": lambda a: a["other"] - a["self"] * a.get("alpha", 1),
    "div": _divided,
    "true_divide": _divided,
    "pow": lambda a: _power(a["self"], a["exponent"]),
    "gelu": lambda a: gelu(a["self"], a.get("approximate", "none")),
    "leaky_relu": lambda a: np.where(a["self"] > 0, a["self"], a["self"] * a.get("negative_slope", 0.01)),
    "elu": lambda a: np.where(a["self"] > 0, a["self"], np.expm1(a["self"]) * a.get("alpha", 1)),
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": _clamp,
    "where": lambda a: np.where(a["condition"], a["self"], a["other"]),
    "masked_fill": lambda a: np.where(a["mask"], a["value"], a["self"]),
    "mean": _along(np.mean),
    "sum": _along(np.sum),
    "amax": _along(np.max),
    "amin": _along(np.min),
    "any": _along(np.any),
    "all": _along(np.all),
    "prod": _along(np.prod),
    "logsumexp": _along(lambda x, axis, keepdims: np.logaddexp.reduce(x, axis=axis, keepdims=keepdims)),
    "max": _extreme(np.max, np.argmax, np.maximum),
    "min": _extreme(np.min, np.argmin, np.minimum),
    "linalg_vector_norm": lambda a: np.linalg.norm(
        a["self"], axis=axes(a.get("dim")), keepdims=a.get("keepdim", False)
    ),
    "norm": lambda a: np.linalg.norm(a["self"], axis=axes(a.get("dim")), keepdims=a.get("keepdim", False)),
    "var": _variance,
    "std": lambda a: np.sqrt(_variance(a)),
    "cumsum": lambda a: np.cumsum(a["self"], axis=a["dim"]),
    "diff": lambda a: np.diff(
        a["self"],
        a.get("n", 1),
        a.get("dim", -1),
        **{argument: a[argument] for argument in ("prepend", "append") if a.get(argument) is not None},
    ),
    "softmax": lambda a: softmax(a["self"], a["dim"]),
    "_softmax": lambda a: softmax(a["self"], a["dim"]),
    "log_softmax": lambda a: np.log(softmax(a["self"], a["dim"])),
    "layer_norm": layer_norm,
    "native_layer_norm": lambda a: (layer_norm(a), None, None),
    "rms_norm": lambda a: (
        a["input"]
        / np.sqrt(
            (a["input"] ** 2).mean(tuple(range(-len(a["normalized_shape"]), 0)), keepdims=True)
            + (np.finfo(np.float32).eps if a.get("eps") is None else a["eps"])
        )
        * (1 if a.get("weight") is None else a["weight"])
    ),
    "_weight_norm": lambda a: a["g"] * a["v"] / _norm_but(a["v"], a.get("dim", 0)),
    "linear": _linear,
    "mm": lambda a: a["self"] @ a["mat2"],
    "bmm": lambda a: a["self"] @ a["mat2"],
    "mv": lambda a: a["self"] @ a["vec"],
    "dot": lambda a: a["self"] @ a["tensor"],
    "addmm": _addmm,
    "baddbmm": _addmm,
    "conv1d": _conv1d,
    "scaled_dot_product_attention": attention,
    "embedding": lambda a: a["weight"][a["indices"]],
    "topk": _topk,
    "argmax": lambda a: np.argmax(a["self"], axis=a.get("dim")),
    "sort": lambda a: (lambda order: (np.take_along_axis(a["self"], order, a.get("dim", -1)), order))(
        np.argsort(-a["self"] if a.get("descending") else a["self"], axis=a.get("dim", -1), kind="stable")
    ),
    "einsum": lambda a: np.einsum(a["equation"], *a["tensors"]),
    "outer": lambda a: np.outer(a["self"], a["vec2"]),
    "polar": lambda a: a["abs"] * np.exp(1j * a["angle"]),
    "view_as_complex": lambda a: a["self"][..., 0] + 1j * a["self"][..., 1],
    "view_as_real": lambda a: np.stack([a["self"].real, a["self"].imag], -1),
    "complex": lambda a: a["real"] + 1j * a["imag"],
    "real": lambda a: a["self"].real,
    "imag": lambda a: a["self"].imag,
}


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
    """Constants around, or less where they are negative; pairs count from the last dimension."""
    if a.get("mode", "constant") not in ("constant", {"text": "constant"}):
        raise ValueError("padding with other values than a constant")
    x, pads = a["self"], a["pad"]
    for i in range(0, len(pads), 2):
        before, behind, axis = pads[i], pads[i + 1], x.ndim - 1 - i // 2
        x = sliced(x, axis, max(-before, 0), x.shape[axis] - max(-behind, 0))
        widths = [(max(before, 0), max(behind, 0)) if at == axis else (0, 0) for at in range(x.ndim)]
        x = np.pad(x, widths, constant_values=a.get("value") or 0)
    return x


def scattered(a: Arguments) -> Array:
    """A copy with a part of one dimension written anew."""
    x = np.array(a["self"])
    np.moveaxis(x, a.get("dim", 0), 0)[a.get("start") : a.get("end") : a.get("step", 1)] = np.moveaxis(
        np.asarray(a["src"]), a.get("dim", 0), 0
    )
    return x


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
    "broadcast_tensors": lambda a: tuple(np.broadcast_arrays(*a["tensors"])),
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
    "slice_scatter": scattered,
    "select_scatter": lambda a: scattered(
        {**a, "src": np.expand_dims(a["src"], a["dim"]), "start": a["index"], "end": a["index"] + 1 or None}
    ),
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
