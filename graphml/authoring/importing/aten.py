"""What ATen's ops compute, in NumPy: numbers of every kind and along axes; shapes are in `aten_shapes`.

Float casts do nothing, so that a description can be evaluated in float64. Knows ops; nothing of graphs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = Any  # an array, or the number that a size is
Arguments = Mapping[str, Any]


def erf(x: Array) -> Array:
    """The error function, to the precision of float64."""
    return np.vectorize(math.erf, otypes=[np.float64])(np.asarray(x, np.float64))


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    return np.exp(-np.logaddexp(0.0, -np.asarray(x, np.float64)))


def gelu(x: Array, approximate: str = "none") -> Array:
    """GELU, or its tanh form."""
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def softmax(x: Array, axis: int) -> Array:
    """exp(x) over its sum; rows that are all minus infinity become 0."""
    top = np.max(x, axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    raised = np.exp(x - top)
    total = raised.sum(axis=axis, keepdims=True)
    return raised / np.where(total == 0, 1.0, total)


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


def _variance(a: Arguments) -> Array:
    free = a.get("correction", 1) if "unbiased" not in a else int(a["unbiased"])
    return np.var(a["self"], axis=axes(a.get("dim")), keepdims=a.get("keepdim", False), ddof=free)


def _power(x: Any, exponent: Any) -> Array:
    return np.power(np.asarray(x, np.float64) if not isinstance(x, np.ndarray) else x, exponent)


def _along(function: Callable[..., Array]) -> Callable[[Arguments], Array]:
    return lambda a: function(a["self"], axis=axes(a.get("dim")), keepdims=a.get("keepdim", False))


def _unary(function: Callable[[Array], Array]) -> Callable[[Arguments], Array]:
    return lambda a: function(a["self"])


def _binary(function: Callable[[Array, Array], Array]) -> Callable[[Arguments], Array]:
    return lambda a: function(a["self"], a["other"])


def _logical(both: Callable[[Array, Array], Array]) -> Callable[[Arguments], Array]:
    return lambda a: both(np.asarray(a["self"]), np.asarray(a["other"]))


UNARY: Mapping[str, Callable[[Array], Array]] = {
    "neg": np.negative,
    "cos": np.cos,
    "sin": np.sin,
    "tanh": np.tanh,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "abs": np.abs,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "relu": lambda x: np.maximum(x, 0),
    "erf": erf,
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
    "max": _along(np.max),
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
