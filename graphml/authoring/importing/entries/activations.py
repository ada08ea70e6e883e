"""Activations: functions of each number by itself, compared on a grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.authoring.importing.aten import BINARY, SAME, UNARY
from graphml.authoring.importing.functions import gelu, sigmoid
from graphml.authoring.importing.region import CatalogueEntry, Recognised, Region, concrete, same

Array = NDArray[Any]
SCALAR = frozenset(
    (
        *UNARY,
        *BINARY,
        *SAME,
        "add",
        "sub",
        "rsub",
        "div",
        "pow",
        "gelu",
        "clamp",
        "clamp_min",
        "clamp_max",
        "where",
        "leaky_relu",
        "elu",
    )
) - {"matmul"}
KNOWN: Mapping[str, Callable[[Array], Array]] = {
    "silu": lambda x: x * sigmoid(x),
    "gelu": lambda x: gelu(x, "tanh"),
    "gelu_erf": gelu,
    "gelu_quick": lambda x: x * sigmoid(1.702 * x),
    "relu": lambda x: np.maximum(x, 0.0),
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "exp": np.exp,
    "softplus": lambda x: np.where(x > 20.0, x, np.logaddexp(0.0, x)),
    "sqr": np.square,
    "absolute": np.abs,
}


def looks(region: Region) -> bool:
    """Scalar ops with constants alone."""
    return (
        len(region.nodes) <= 16
        and region.ops <= SCALAR
        and not region.ops <= set(SAME)
        and region.shape == region.shape_last
        and not region.others(lambda name: not region.dependence.is_constant(name))
    )


def matches(region: Region) -> Recognised | None:
    """The known function that agrees on a grid, or a soft cap."""
    shape = concrete(region.shape, 4)
    x = np.linspace(-9.0, 9.0, int(np.prod(shape))).reshape(shape)
    with np.errstate(all="ignore"):
        y = region.run(x, 4)
    entries = {"x": region.entry}
    for name, function in KNOWN.items():
        if same(y, function(x)):
            return Recognised(name, region.last, entries)
    if "tanh" not in region.ops:
        return None
    limit = float(np.round(np.max(np.abs(region.run(np.full(shape, 1e9), 4))), 9))
    if limit > 0 and same(y, limit * np.tanh(x / limit)):
        return Recognised("softcap", region.last, entries, numbers={"limit": limit})
    return None


ENTRY = CatalogueEntry("activation", looks, matches)
