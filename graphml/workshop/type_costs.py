"""What each type would cost each matrix, and the choice of types for a size.

A matrix is encoded in each type, and its errors are weighed by their sensitivity. Knows matrices, types and
costs; nothing of how sensitivity is measured or files are written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import graphml_quant
import numpy as np
from numpy.typing import NDArray

from graphml.api.quantize import dequantize, quantize
from graphml.errors import UsageError
from graphml.weights.tensor import Tensor
from graphml.workshop.sensitivity import Sensitivity

CANDIDATES = (
    "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "q2_k", "iq3_xxs", "iq3_s", "q3_k", "iq4_xs", "iq4_nl", "q4_0",
    "q4_1", "q4_k", "q5_0", "q5_1", "q5_k", "q6_k", "q8_0", "f16",
)  # fmt: skip
"""Types that are tried where a matrix's rows are whole blocks of them."""
PIECE = 1 << 21  # elements


@dataclass(frozen=True)
class TypeCost:
    """A matrix in a type: bytes, and nats of KL divergence a token."""

    n_bytes: int
    kl: float


Costs = dict[str, dict[str, TypeCost]]
"""Name of a matrix -> type -> its cost."""


def type_costs(
    tensors: Sequence[Tensor], seen: Sensitivity, types: Sequence[str] = CANDIDATES, threads: int = 1
) -> Iterator[tuple[str, dict[str, TypeCost]]]:
    """Of each matrix what the types cost that its rows are whole blocks of, as they come."""
    with ThreadPoolExecutor(max(threads, 1)) as pool:
        for tensor in tensors:
            values = tensor.numpy()
            columns = seen.columns(tensor.name)
            fitting = [t for t in types if not tensor.shape[-1] % graphml_quant.by_name(t).block_elements]

            cost = partial(_cost, tensor, values, columns, seen)
            yield tensor.name, dict(zip(fitting, pool.map(cost, fitting), strict=True))


def _cost(
    tensor: Tensor, values: NDArray[np.float32], columns: NDArray[np.float64], seen: Sensitivity, dtype: str
) -> TypeCost:
    errors = rounding_errors(values, dtype, columns)
    return TypeCost(graphml_quant.by_name(dtype).bytes_for_shape(tensor.shape), seen.kl(tensor.name, errors))


def rounding_errors(
    values: NDArray[np.float32], dtype: str, importance: NDArray[np.float64]
) -> NDArray[np.float32]:
    """What a type changes in a matrix, or in several [matrices, rows, columns], each with its importance."""
    errors = np.empty_like(values)
    matrices, out = (array.reshape(-1, *array.shape[-2:]) for array in (values, errors))
    for matrix, of_matrix, weights in zip(matrices, out, importance, strict=True):
        step = max(1, PIECE // matrix.shape[1])
        for begin in range(0, len(matrix), step):
            rows = matrix[begin : begin + step]
            blocks = quantize(rows, dtype, weights if weights.any() else None, threads=1)
            of_matrix[begin : begin + step] = dequantize(blocks, dtype, rows.shape) - rows
    return errors


def choose(costs: Costs, n_bytes: int, others: int = 0) -> dict[str, str]:
    """Name -> type of all matrices within n_bytes, for the least sum of KL divergences that steps find.

    others: bytes that other tensors take of them.

    Each matrix begins with the smallest type on its lower convex hull; the step to the next one that saves
    most KL a byte is taken as long as there is room. UsageError where the smallest types do not fit.
    """
    hulls = {name: _hull(of_types) for name, of_types in costs.items()}
    at = dict.fromkeys(hulls, 0)
    used = others + sum(hull[0].cost.n_bytes for hull in hulls.values())
    if used > n_bytes:
        raise UsageError(f"the smallest types take {used:,} bytes for tensors; wanted at most {n_bytes:,}")
    steps = [
        (-_saved(hull[i].cost, hull[i + 1].cost), name, i)
        for name, hull in hulls.items()
        for i in range(len(hull) - 1)
    ]
    for _, name, i in sorted(steps):
        hull = hulls[name]
        more = hull[i + 1].cost.n_bytes - hull[i].cost.n_bytes
        if at[name] == i and used + more <= n_bytes:  # else a step before it had no room
            used += more
            at[name] = i + 1
    return {name: hull[at[name]].dtype for name, hull in hulls.items()}


@dataclass(frozen=True)
class _Point:
    dtype: str
    cost: TypeCost


def _hull(of_types: Mapping[str, TypeCost]) -> list[_Point]:
    """The types on the lower convex hull of bytes and KL, smallest first."""
    hull: list[_Point] = []
    for dtype, cost in sorted(of_types.items(), key=lambda pair: (pair[1].n_bytes, pair[1].kl)):
        if hull and (cost.kl >= hull[-1].cost.kl or cost.n_bytes == hull[-1].cost.n_bytes):
            continue  # no better
        while len(hull) > 1 and _saved(hull[-2].cost, hull[-1].cost) <= _saved(hull[-1].cost, cost):
            hull.pop()
        hull.append(_Point(dtype, cost))
    return hull


def _saved(smaller: TypeCost, larger: TypeCost) -> float:
    """Nats a byte of the step from one to the other."""
    return (smaller.kl - larger.kl) / (larger.n_bytes - smaller.n_bytes)


def written(costs: Costs) -> str:
    """As JSON."""
    return json.dumps(
        {name: {dtype: [cost.n_bytes, cost.kl] for dtype, cost in of.items()} for name, of in costs.items()}
    )


def parsed(text: str) -> Costs:
    """What `written` wrote; a UsageError for anything else."""
    try:
        return {
            name: {dtype: TypeCost(int(n_bytes), float(kl)) for dtype, (n_bytes, kl) in of.items()}
            for name, of in json.loads(text).items()
        }
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"wanted costs of types by matrix; {error}") from None
