"""Ops that move or re-see elements without computing."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from graphml.errors import ShapeError
from graphml.ir.op import Array, Attributes, Op, Sample, Type
from graphml.ir.ops.rules import ROWS, f32
from graphml.ir.shape import Dim, Symbol


def _ints(value: object) -> tuple[int, ...]:
    return tuple(value)  # type: ignore[arg-type]  # a tuple attribute


def _infer_reshape(inputs: Sequence[Type], attributes: Attributes) -> Type:
    x = inputs[0]
    tail = _ints(attributes["tail"])
    kept = int(attributes["keep"])  # type: ignore[call-overload]  # an int attribute
    head, rest = x.shape[:kept], x.shape[kept:]
    if any(isinstance(dim, Symbol) for dim in rest) or prod(rest) != prod(tail):  # type: ignore[type-var]
        raise ShapeError(f"wanted {prod(tail)} elements after the first {kept} dimensions for {tail}; got {x}")
    if x.dtype.is_format:
        raise ShapeError(f"wanted plain numbers to reshape; got {x}")
    return Type(x.dtype, (*head, *tail))


def _reshape(inputs: Sequence[Array], attributes: Attributes) -> Array:
    kept = int(attributes["keep"])  # type: ignore[call-overload]  # an int attribute
    return inputs[0].reshape(*inputs[0].shape[:kept], *_ints(attributes["tail"]))


def _infer_permute(inputs: Sequence[Type], attributes: Attributes) -> Type:
    axes = _ints(attributes["axes"])
    if sorted(axes) != list(range(len(inputs[0].shape))):
        raise ShapeError(f"wanted a permutation of the dimensions of {inputs[0]}; got {axes}")
    return Type(inputs[0].dtype, tuple(inputs[0].shape[axis] for axis in axes))


def _infer_concat(inputs: Sequence[Type], attributes: Attributes) -> Type:
    a, b = inputs
    if a.dtype is not b.dtype or a.shape[:-1] != b.shape[:-1]:
        raise ShapeError(f"wanted two values alike but for the last dimension; got {a} and {b}")
    last: Dim = a.shape[-1] + b.shape[-1]  # type: ignore[operator]  # last dimensions are numbers
    return Type(a.dtype, (*a.shape[:-1], last))


def _infer_columns(inputs: Sequence[Type], attributes: Attributes) -> Type:
    x, start, stop = inputs[0], attributes["start"], attributes["stop"]
    last = x.shape[-1]
    if not (isinstance(start, int) and isinstance(stop, int) and isinstance(last, int)) or not 0 <= start < stop <= last:
        raise ShapeError(f"wanted columns within {x}; got {start} to {stop}")
    return Type(x.dtype, (*x.shape[:-1], stop - start))


reshape = Op("reshape", "layout", infer=_infer_reshape, reference=_reshape,
             samples=lambda: [Sample((f32(ROWS, 24),), {"tail": (4, 6)}),
                              Sample((f32(ROWS, 4, 6),), {"tail": (24,)})],
             attributes={"tail": None, "keep": 1}, view=True)  # fmt: skip
permute = Op("permute", "layout", infer=_infer_permute,
             reference=lambda inputs, at: np.ascontiguousarray(np.transpose(inputs[0], _ints(at["axes"]))),
             samples=lambda: [Sample((f32(ROWS, 4, 6),), {"axes": (1, 0, 2)}), Sample((f32(3, 5),), {"axes": (1, 0)})],
             attributes={"axes": None})  # fmt: skip
concat = Op("concat", "layout", infer=_infer_concat,
            reference=lambda inputs, at: np.concatenate(inputs, axis=-1),
            samples=lambda: [Sample((f32(ROWS, 5), f32(ROWS, 9)))])  # fmt: skip
columns = Op("columns", "layout", infer=_infer_columns,
             reference=lambda inputs, at: np.ascontiguousarray(inputs[0][..., at["start"] : at["stop"]]),
             samples=lambda: [Sample((f32(ROWS, 40),), {"start": 8, "stop": 24})],
             attributes={"start": None, "stop": None})  # fmt: skip
