"""Operands of a case: ordinary numbers, and in some runs NaN or infinity.

They follow from the case, the operand and a seed alone, whatever other cases are tested with it. Knows cases;
runs nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from math import prod

import graphml_quant
import numpy as np

from graphml.conformance.cases import Case
from graphml.ir.dtype import F32, DType
from graphml.ir.op import Array
from graphml.ir.ops.linear import encode
from graphml.ir.shape import Symbol, resolve
from graphml.weights.random_blocks import random_blocks

# One in each of the first rows of an operand: a kernel must not lose, invent or spread them over rows.
SPECIAL = {"NaN": (np.nan, 1e3, -1e3, np.nan), "infinity": (np.inf, -np.inf, np.inf, -np.inf)}
# The order of NaN among sorted numbers is undefined; a router's scores are finite.
ORDERING = frozenset({"top_k", "top_k_groups", "route_experts"})
MARGIN = 4096  # bytes of NaN before and after a weight: using them shows in the result


def generator_of(case: Case, part: str, shape: tuple[int, ...], seed: int) -> np.random.Generator:
    """The generator of the values of a part of a case, of a shape."""
    attributes = sorted(case.sample.attributes.items())
    said = repr((case.name, attributes, part, shape, seed))
    return np.random.default_rng(list(hashlib.sha256(said.encode()).digest()))


def may_be_special(case: Case) -> bool:
    """Whether the op is defined for NaN and infinity: formats have no blocks of them."""
    floats = any(kind.dtype is F32 for kind in case.sample.inputs)
    blocks = case.activation is not None or bool(case.weight)
    blocks |= any(
        kind.dtype.is_format and leaf == "state"
        for kind, leaf in zip(case.sample.inputs, case.leaves, strict=True)
    )
    return floats and not blocks and case.op.name not in ORDERING


def operand(
    case: Case, i: int, dims: Mapping[str, int], generator: np.random.Generator, special: str = ""
) -> Array:
    """The array of an input or a state. special: the numbers of `SPECIAL` in it; "": none."""
    kind = case.sample.inputs[i]
    shape = resolve(kind.shape, dims)
    make = case.sample.fill.get(i)
    if make is not None:
        return np.asarray(make(generator, shape), kind.dtype.numpy)
    if kind.dtype.numpy is not None and kind.dtype.numpy.kind == "i":
        return np.zeros(shape, kind.dtype.numpy)
    values = generator.standard_normal(shape).astype(np.float32)
    if special and case.leaves[i] == "input" and isinstance(kind.shape[0], Symbol):
        _put_special(values, SPECIAL[special], generator)
    return encode(values, kind.dtype)


def _put_special(values: Array, special: Sequence[float], generator: np.random.Generator) -> None:
    """Put one of them in each of the first rows; of several rows the last is unchanged."""
    rows = values.reshape(len(values), -1)
    for row in range(min(len(special), max(len(rows) - 1, 1))):
        rows[row, generator.integers(rows.shape[1])] = special[row]


def weight(case: Case, i: int, generator: np.random.Generator) -> tuple[Array, Array]:
    """The array of a weight, and the buffer around it, which is filled with NaN."""
    kind = case.sample.inputs[i]
    shape = resolve(kind.shape, {})
    array = operand(case, i, {}, generator) if kind.dtype is F32 else blocks(kind.dtype, shape, generator)
    around = np.full(array.nbytes + 2 * MARGIN, 0xFF, np.uint8)
    inside = around[MARGIN : MARGIN + array.nbytes]
    inside[:] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
    return inside.view(array.dtype).reshape(array.shape), around


def blocks(
    kind: DType, shape: tuple[int, ...], generator: np.random.Generator, deviation: float = 1.0
) -> Array:
    """Random weights of a dtype that files store, in the graph's layout."""
    form = graphml_quant.by_name(kind.name)
    count = prod(shape) // form.block_elements
    raw = np.concatenate(list(random_blocks(form, count, deviation, int(generator.integers(1 << 30)))))
    rows = raw.reshape(*shape[:-1], -1)
    return rows if kind.numpy is None else rows.view(kind.numpy)
