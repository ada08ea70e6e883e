"""How products are shared out among invocations: the parameters of their kernels, by device and shape.

Knows the parameters and the usual ones; knows neither graphs nor drivers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphml_gpu.driver import Facts

FEW = 8
"""Rows of activations that the kernels for few take at a time."""


@dataclass(frozen=True)
class Product:
    """One product: k elements of each of n rows of weights, at most so many rows of activations."""

    format: str
    n: int
    k: int
    columns: int


def is_processor(facts: Facts) -> bool:
    """Whether the device runs invocations one after the other: sharing costs, what they repeat is cached."""
    return facts.kind == "cpu"


def few_rows(facts: Facts, product: Product) -> Mapping[str, int]:
    """GROUP, LANES, ROWS and COLUMNS of `mat_vec`."""
    columns = min(product.columns, 4 if is_processor(facts) and product.columns > FEW else FEW)
    if is_processor(facts):
        return {"GROUP": 16, "LANES": 1, "ROWS": 4 if product.n >= 256 else 1, "COLUMNS": columns}
    units = -(-product.k // 16)
    group = min(64, facts.max_group)
    lanes = min(group, 64 if units >= 128 else 32 if units >= 32 else 8)
    tall = 2 if product.n >= 4096 and columns <= 4 else 1
    return {"GROUP": group, "LANES": lanes, "ROWS": tall, "COLUMNS": columns}


def many_rows(facts: Facts, product: Product) -> Mapping[str, int]:
    """GROUP, ACROSS, TILE_ROWS, TILE_COLUMNS and UNITS of `mat_mul`."""
    if facts.max_group < 128 or facts.shared_bytes < 16384 or product.columns <= 32:
        return {"GROUP": 64, "ACROSS": 8, "TILE_ROWS": 32, "TILE_COLUMNS": 32, "UNITS": 2}
    return {"GROUP": 128, "ACROSS": 16, "TILE_ROWS": 64, "TILE_COLUMNS": 64, "UNITS": 2}
