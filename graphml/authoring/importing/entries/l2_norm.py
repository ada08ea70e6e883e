"""L2 norm over the last dimension, as `F.normalize` and sums of squares have it: rows of length 1."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.authoring.importing.entries.activations import SCALAR
from graphml.authoring.importing.entries.norms import is_of_rows
from graphml.authoring.importing.region import CatalogueEntry, Recognised, Region, same

Array = NDArray[Any]
SUMS = frozenset(("linalg_vector_norm", "norm", "sum"))
ALLOWED = SCALAR | SUMS | {"expand", "expand_as", "maximum"}
T = 5


def looks(region: Region) -> bool:
    """A sum over the last dimension and scalar ops, without parameters and positions."""
    return is_of_rows(region, 10, SUMS, ALLOWED) and not region.others(region.dependence.is_parameters)


def matches(region: Region) -> Recognised | None:
    """The least length that rows are divided by, if all of it agrees."""
    if not same(region.run(x := region.random(T, 0), T), x / _length(x), 1e-9):
        return None
    tiny = region.random(T, 1, 1e-30)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = tiny / region.run(tiny, T)
    least = float(np.median(ratio[np.isfinite(ratio)])) if np.isfinite(ratio).any() else 0.0
    eps = float(f"{least:.6g}") if np.allclose(ratio, least, rtol=1e-6, atol=0) else 0.0
    for seed, size in enumerate((1.0, 2 * eps or 1e-9, 0.5 * eps or 1e-12, 1e-3)):
        x = region.random(T, seed + 2)
        x = x / _length(x) * size
        if not same(region.run(x, T), x / np.maximum(_length(x), eps), 1e-7):
            return None
    return Recognised("l2_norm", region.last, {"x": region.entry}, numbers={"eps": eps})


def _length(x: Array) -> Array:
    length: Array = np.sqrt((x**2).sum(-1, keepdims=True))
    return length


ENTRY = CatalogueEntry("l2_norm", looks, matches)
