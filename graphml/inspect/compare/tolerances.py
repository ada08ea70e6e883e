"""Tolerances: the difference of two arrays, and the table of allowed differences by op.

Knows arrays and ops; nothing of models or backends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from graphml.errors import UsageError
from graphml.ir.node import Node
from graphml.ir.op import Array

# The NMSE by which a value may differ between backends with the same inputs. About a hundred times the
# values measured on the goldens and SmolLM2: other orders of summation, other exp.
TOLERANCES = {
    "leaf": 0.0,
    "layout": 0.0,
    "index": 1e-12,
    "elementwise": 1e-12,
    "norm": 1e-12,
    "reduce": 1e-10,  # a sum of mixed signs may be small beside its terms
    "position": 1e-9,
    "linear": 1e-11,
    "attention": 1e-9,
    "fused": 1e-11,
    "own": 1e-10,  # as reductions: nothing is known of it
}
# Products with activations in blocks of int8: the backends have scales of different precision, and a value
# half way between two steps may be rounded to either.
INT8_TOLERANCE = 1e-5
# The effect of such a rounding on a product is measured by moving inputs like scales of half precision.
SCALE_STEP, ROUNDING_TIMES, ROUNDING_TRIES = 5e-4, 4.0, 4
MOST_BY_ROUNDING = 1e-3  # NMSE that int8 alone never makes
# A few sums may all be small beside their terms.
FEW_NUMBERS, FEW_TIMES = 8, 100.0
# Attention whose factors are rounded to bfloat16 (`product_dtype`): up to 4e-5 was measured.
BF16_TOLERANCE = 2e-4
BF16_STEP = 2.0**-8  # of a number, what rounding it to bfloat16 moves it at most
# Keys and values are rounded when they are written; one that is half way may go to either neighbour.
CACHE_TOLERANCE = 1e-8


@dataclass(frozen=True)
class ArrayDifference:
    """The difference of two arrays.

    nmse: the squared error in proportion to the wanted values' squares, in double precision; infinite if
    NaN or infinity are in one array alone. max_ulp, median_ulp: steps between neighbouring numbers of the
    dtype (of whole numbers: their difference). nan, inf: counts in the first and in the second array.
    """

    nmse: float
    max_abs: float
    max_ulp: int
    median_ulp: float
    nan: tuple[int, int]
    inf: tuple[int, int]

    def as_json(self) -> dict[str, Any]:
        """Plain values; an infinite error is the text "inf"."""
        plain = asdict(self)
        return {
            name: str(v) if isinstance(v, float) and not np.isfinite(v) else v for name, v in plain.items()
        }


def difference(got: Array, wanted: Array) -> ArrayDifference:
    """Compare arrays of one shape and kind; a UsageError for others."""
    _want_alike(got, wanted)
    if np.array_equal(got, wanted):
        infinite = int(np.isinf(got).sum())
        return ArrayDifference(0.0, 0.0, 0, 0.0, (0, 0), (infinite, infinite))
    a, b = got.ravel(), wanted.ravel()
    nan = int(np.isnan(a).sum()), int(np.isnan(b).sum())
    inf = int(np.isinf(a).sum()), int(np.isinf(b).sum())
    finite = np.isfinite(a) & np.isfinite(b)
    steps = _steps(a[finite], b[finite])
    x, y = a[finite].astype(np.float64), b[finite].astype(np.float64)
    return ArrayDifference(
        _nmse(a, b, finite),
        float(np.max(np.abs(x - y), initial=0.0)),
        int(np.max(steps, initial=0)),
        float(np.median(steps)) if steps.size else 0.0,
        nan,
        inf,
    )


def nmse(got: Array, wanted: Array) -> float:
    """The NMSE of `difference` alone, in a third of the time."""
    _want_alike(got, wanted)
    if np.array_equal(got, wanted):
        return 0.0
    a, b = got.ravel(), wanted.ravel()
    return _nmse(a, b, np.isfinite(a) & np.isfinite(b))


def _want_alike(got: Array, wanted: Array) -> None:
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        raise UsageError(
            f"compare: {got.dtype}{list(got.shape)} and {wanted.dtype}{list(wanted.shape)} do not match"
        )


def _nmse(a: Array, b: Array, finite: Array) -> float:
    """Of the elements that are finite in both; infinity if the others differ."""
    if not finite.all():
        if not np.array_equal(a[~finite], b[~finite], equal_nan=a.dtype.kind == "f"):
            return float("inf")
        a, b = a[finite], b[finite]
    x, y = a.astype(np.float64), b.astype(np.float64)
    error, energy = float(np.sum((x - y) ** 2)), float(np.sum(y * y))
    return 0.0 if error == 0 else error / energy if energy else float("inf")


def _steps(a: Array, b: Array) -> Array:
    """How many representable numbers are between each pair."""
    steps: Array = np.abs(_ordinal(a) - _ordinal(b))
    return steps


def _ordinal(values: Array) -> Array:
    """Whole numbers in the order of the values, one apart for neighbouring values."""
    if values.dtype.kind != "f":
        return values.astype(np.int64)
    bits = values.view(f"i{values.dtype.itemsize}").astype(np.int64)
    lowest = -(1 << (8 * values.dtype.itemsize - 1))
    ordered: Array = np.where(bits < 0, lowest - bits, bits)
    return ordered


def moved(values: Array, generator: np.random.Generator, step: float = SCALE_STEP) -> Array:
    """Numbers each changed by up to `step` of itself; whole numbers and bytes as they are."""
    if values.dtype.kind != "f":
        return values
    result: Array = (values * (1 + step * generator.uniform(-1, 1, values.shape))).astype(values.dtype)
    return result


def spans(indices: Array) -> str:
    """Ascending whole numbers as `0-3,7`, at most four spans."""
    if not indices.size:
        return "none"
    runs = np.split(indices, np.flatnonzero(np.diff(indices) != 1) + 1)
    texts = [f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ",".join(texts[:4]) + (",..." if len(texts) > 4 else "")


def tolerance(unit: Iterable[Node], size: int = FEW_NUMBERS) -> float:
    """The NMSE allowed for nodes together: that of the most tolerant; size: how many numbers they compute."""
    most = max((_of(node) for node in unit), default=0.0)
    return most * FEW_TIMES if size < FEW_NUMBERS else most


def makes_int8(node: Node) -> bool:
    """Whether a node's value, or one of its results, is in blocks of a format."""
    return node.op.family != "leaf" and any(kind.dtype.is_format for kind in node.type.parts or (node.type,))


def rounds_to_bf16(node: Node) -> bool:
    """Whether a node of attention may round its factors to bfloat16."""
    return node.attributes.get("product_dtype") == "bf16"


def _of(node: Node) -> float:
    if makes_int8(node):
        return INT8_TOLERANCE
    if node.op.is_write:
        return CACHE_TOLERANCE
    if rounds_to_bf16(node):
        return BF16_TOLERANCE
    if "attention" in node.op.name:
        return TOLERANCES["attention"]
    if "rope" in node.op.name:
        return TOLERANCES["position"]
    return TOLERANCES.get(node.op.family, TOLERANCES["fused"])
