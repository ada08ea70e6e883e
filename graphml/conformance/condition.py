"""How much a case's results depend on rounding: of sums that cancel, and of operands in blocks of int8.

The error of a sum follows the size of its terms. Where these cancel, a right result may be far from the
reference beside its own small size, and a limit for usual sums would fail by chance. So a limit grows with
the square of the condition number, as results show it when operands move by one step of float32. A value
half way between two steps of int8 may be rounded to either, as `graphml bisect` allows. Where attention
rounds to bfloat16 a large score moves by whole numbers. Knows arrays and ops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from graphml.inspect.compare.tolerances import (
    BF16_STEP,
    MOST_BY_ROUNDING,
    ROUNDING_TIMES,
    ROUNDING_TRIES,
    makes_int8,
    moved,
    nmse,
    rounds_to_bf16,
)
from graphml.ir.node import Node
from graphml.ir.op import Array

Compute = Callable[[Mapping[str, Array]], Mapping[str, Array]]
STEP = 2.0**-23
OF_ONE_SUM = ("elementwise", "layout", "index", "leaf")  # families whose results have one rounding each
HALF_AND_HALF = ("gelu", "geglu")  # x / 2 + x / 2 * erf(...), of which the first may cancel the second


def may_grow(nodes: Sequence[Node], error: float) -> bool:
    """Whether the limit for an NMSE of nodes depends on their values: not where they move or store them."""
    if any(map(makes_int8, nodes)):
        return error <= MOST_BY_ROUNDING
    if any(node.op.is_write for node in nodes):
        return False
    return np.isfinite(error) and any(node.op.family not in OF_ONE_SUM or _of_halves(node) for node in nodes)


def grown(
    limit: float, compute: Compute, operands: Mapping[str, Array], nodes: Sequence[Node]
) -> Mapping[str, float]:
    """Name of a result -> the limit of its NMSE for these operands, at least `limit`.

    compute: the results, by name, of operands by name. nodes: those that it computes, the op's last.
    """
    usual = compute(operands)
    if any(map(makes_int8, nodes)) or any(map(rounds_to_bf16, nodes)):
        step = BF16_STEP if any(map(rounds_to_bf16, nodes)) else None
        tries = _again(compute, operands, step)
        return {
            name: max(limit, ROUNDING_TIMES * max(nmse(again[name], value) for again in tries))
            for name, value in usual.items()
        }
    return {
        name: limit * condition
        for name, condition in _squared_conditions(compute, operands, usual, nodes[-1]).items()
    }


def _again(
    compute: Compute, operands: Mapping[str, Array], step: float | None = None
) -> list[Mapping[str, Array]]:
    """The results of operands that are rounded otherwise."""
    results = []
    for seed in range(ROUNDING_TRIES):
        generator = np.random.default_rng(seed)
        by = {} if step is None else {"step": step}
        results.append(compute({name: moved(value, generator, **by) for name, value in operands.items()}))
    return results


def _squared_conditions(
    compute: Compute, operands: Mapping[str, Array], usual: Mapping[str, Array], node: Node
) -> dict[str, float]:
    """Of each result, at least 1."""
    again = _again(compute, operands, STEP)
    terms = _energy(np.prod(list(operands.values()), axis=0)) if _of_halves(node) else 0.0
    conditions = {}
    for name, value in usual.items():
        change = max(_energy(other[name].astype(np.float64) - value) for other in again)
        energy = _energy(value)
        conditions[name] = max(1.0, change / (STEP * STEP / 3) / energy, terms / energy) if energy else 1.0
    return conditions


def _of_halves(node: Node) -> bool:
    return node.op.name.partition("_")[0] in HALF_AND_HALF


def _energy(values: Array) -> float:
    return float(np.sum(np.square(values.astype(np.float64))))
