"""RMS norm (arXiv:1910.07467) and layer norm (arXiv:1607.06450) over the last dimension, however written."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.authoring.importing.entries.activations import SCALAR
from graphml.authoring.importing.region import CatalogueEntry, Recognised, Region, run, same

Array = NDArray[Any]
WHOLE = frozenset(("layer_norm", "rms_norm", "native_layer_norm"))
SUMS = WHOLE | {"mean", "var", "sum", "norm", "linalg_vector_norm", "std"}
ALLOWED = SCALAR | SUMS | {"python.getitem", "expand", "view"}
T = 5


def looks(region: Region) -> bool:
    """A sum over the last dimension, and scalar ops; at most one weight and one bias."""
    return is_of_rows(region, 16, SUMS, ALLOWED)


def is_of_rows(region: Region, most: int, sums: frozenset[str], allowed: frozenset[str]) -> bool:
    """Whether a region of at most so many nodes keeps its shape, has a sum, these ops alone, no positions."""
    return (
        len(region.nodes) <= most
        and bool(region.ops & sums)
        and region.ops <= allowed
        and region.shape == region.shape_last
        and len(region.shape) > 1
        and isinstance(region.shape[-1], int)
        and not region.has_positions()
    )


def matches(region: Region) -> Recognised | None:
    """Which norm, its eps, weight and bias."""
    shape = region.random(T, 0).shape
    signs = (-1.0) ** np.arange(int(np.prod(shape[:-1])))  # a level's sign must not matter to a layer norm
    level = np.broadcast_to(signs.reshape(*shape[:-1], 1), shape)
    bias = region.run(1e3 * level, T)
    centred = bool(np.all(np.abs(bias - region.run(2e3 * level, T)) < 1e-6)) and _is_vector(bias)
    shift = bias.reshape(-1, bias.shape[-1])[0] if centred else np.zeros(bias.shape[-1])
    x = region.random(T, 1, 1e6)
    weight = (region.run(x, T) - shift) * np.sqrt(_mean_square(x, centred)) / _centred(x, centred)
    if not _is_vector(weight):
        return None
    row = weight.reshape(-1, weight.shape[-1]).mean(0)
    eps = _eps(region, row, shift, centred)
    if eps is None or not _agrees(region, row, shift, eps, centred):
        return None
    weights = {}
    for role, values in (("weight", row), ("bias", shift)):
        name = _parameter(region, values)
        if name is not None:
            weights[role] = name
        elif not same(values, np.full(values.shape, 1.0 if role == "weight" else 0.0), 1e-7) and np.any(
            np.abs(values) > 1e-12
        ):
            return None
    return Recognised(
        "layer_norm" if centred else "rms_norm", region.last, {"x": region.entry}, weights, {"eps": eps}
    )


def _centred(x: Array, centred: bool) -> Array:
    return x - x.mean(-1, keepdims=True) if centred else x


def _mean_square(x: Array, centred: bool) -> Array:
    mean_square: Array = (_centred(x, centred) ** 2).mean(-1, keepdims=True)
    return mean_square


def _is_vector(values: Array) -> bool:
    """Whether all rows are the same."""
    rows = values.reshape(-1, values.shape[-1])
    return bool(np.all(np.isfinite(rows))) and same(rows, np.broadcast_to(rows[:1], rows.shape), 1e-6)


def _eps(region: Region, weight: Array, bias: Array, centred: bool) -> float | None:
    x = region.random(T, 2, 1e-3)
    ratio = (region.run(x, T) - bias) / (_centred(x, centred) * weight)
    eps = float(np.median(1 / ratio**2 - _mean_square(x, centred)))
    return float(f"{eps:.6g}") if np.isfinite(eps) and eps > 1e-14 else 0.0 if abs(eps) < 1e-12 else None


def _agrees(region: Region, weight: Array, bias: Array, eps: float, centred: bool) -> bool:
    for seed, size in ((3, 1.0), (4, 0.01)):
        x = region.random(T, seed, size) + (0.3 * size)
        wanted = _centred(x, centred) / np.sqrt(_mean_square(x, centred) + eps) * weight + bias
        if not same(region.run(x, T), wanted, 1e-7):
            return False
    return True


def _parameter(region: Region, values: Array) -> str | None:
    """The operand, or what is computed from parameters alone inside the region, that has these values."""
    for name in region.others(region.dependence.is_parameters):
        parameter = run(region.dependence, {}, name, T)
        if parameter.size == values.size and same(parameter.reshape(-1), values, 1e-6):
            return name
    return None


ENTRY = CatalogueEntry("norm", looks, matches)
