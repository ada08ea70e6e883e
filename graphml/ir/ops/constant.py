"""The constant: a value that is written in the graph. It has no operands, so backends compute it once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from graphml.errors import GraphError, ShapeError
from graphml.ir.dtype import F32, I32
from graphml.ir.op import Array, Attribute, Attributes, Op, Type, integers

MOST_ELEMENTS = 65_536


def attributes_of(values: Any) -> Mapping[str, Attribute]:
    """The attributes of a number, an array or nested lists: whole numbers i32, others and truth values f32.

    A `GraphError` for numbers that the dtype does not hold.
    """
    array = np.atleast_1d(np.asarray(values))
    kind = np.int32 if array.dtype.kind in "iu" else np.float32
    with np.errstate(over="ignore"):
        held = array.astype(kind)
    wrong = (held != array) if kind is np.int32 else np.isinf(held) & np.isfinite(array)
    if wrong.any():
        of = "of 32 bits" if kind is np.int32 else "that float32 holds"
        raise GraphError(f"[g.constant] wanted numbers {of}; got {array[wrong][0]!s}")
    # The shortest text that gives the same float32, so that graphs are easy to read.
    flat = (
        [float(number) for number in held.ravel().astype(str)]
        if kind is np.float32
        else held.ravel().tolist()
    )
    return {"values": tuple(flat), "shape": held.shape}


def _infer(inputs: Sequence[Type], attributes: Attributes) -> Type:
    values, shape = attributes["values"], integers(attributes, "shape")
    if inputs or not isinstance(values, tuple) or not 0 < len(values) <= MOST_ELEMENTS:
        raise ShapeError(f"wanted 1 to {MOST_ELEMENTS} numbers and no operands; got {str(values)[:60]}")
    if not shape or min(shape) < 1 or prod(shape) != len(values):
        raise ShapeError(f"wanted a shape of {len(values)} elements; got {shape}")
    if not all(type(value) is int for value in values):
        return Type(F32, shape)
    if not -(2**31) <= min(values) <= max(values) < 2**31:
        raise ShapeError(f"wanted whole numbers of 32 bits; got {min(values)} to {max(values)}")
    return Type(I32, shape)


def _value(inputs: Sequence[Array], attributes: Attributes) -> Array:
    kind = _infer((), attributes).dtype.numpy
    return np.array(attributes["values"], kind).reshape(integers(attributes, "shape"))


constant = Op("constant", "layout", infer=_infer, reference=_value, samples=list,
              attributes={"values": None, "shape": None})  # fmt: skip
