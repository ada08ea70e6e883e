"""Ops that move or view elements without computing."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from graphml.errors import ShapeError
from graphml.ir.node import Node
from graphml.ir.op import Array, Attributes, Op, Sample, Type, integer, integers
from graphml.ir.ops.rules import ROWS, f32
from graphml.ir.shape import Symbol, bounds, fixed


def _infer_reshape(inputs: Sequence[Type], attributes: Attributes) -> Type:
    x, tail, kept = inputs[0], integers(attributes, "tail"), integer(attributes, "keep")
    head, rest = x.shape[:kept], x.shape[kept:]
    known = kept >= 0 and min(tail, default=1) > 0 and Symbol not in map(type, rest)
    if not known or prod(bounds(rest)) != prod(tail):
        raise ShapeError(f"wanted elements for {tail} after the first {kept} dimensions; got {x}")
    if x.dtype.is_format:
        raise ShapeError(f"wanted plain numbers to reshape; got {x}")
    return Type(x.dtype, (*head, *tail))


def _reshape(inputs: Sequence[Array], attributes: Attributes) -> Array:
    kept = integer(attributes, "keep")
    return inputs[0].reshape(*inputs[0].shape[:kept], *integers(attributes, "tail"))


def _infer_permute(inputs: Sequence[Type], attributes: Attributes) -> Type:
    axes = integers(attributes, "axes")
    if sorted(axes) != list(range(len(inputs[0].shape))):
        raise ShapeError(f"wanted a permutation of the dimensions of {inputs[0]}; got {axes}")
    return Type(inputs[0].dtype, tuple(inputs[0].shape[axis] for axis in axes))


def _infer_part(inputs: Sequence[Type], attributes: Attributes) -> Type:
    parts, index = inputs[0].parts, integer(attributes, "index")
    if not 0 <= index < len(parts):
        raise ShapeError(f"wanted a node with at least {index + 1} results; got {inputs[0]}")
    return parts[index]


def _part(inputs: Sequence[Array], attributes: Attributes) -> Array:
    array: Array = inputs[0][integer(attributes, "index")]
    return array


def _infer_concat(inputs: Sequence[Type], attributes: Attributes) -> Type:
    a, b = inputs
    if a.dtype is not b.dtype or a.shape[:-1] != b.shape[:-1]:
        raise ShapeError(f"wanted two values alike but for the last dimension; got {a} and {b}")
    return Type(a.dtype, (*a.shape[:-1], fixed(a.shape[-1]) + fixed(b.shape[-1])))


def _infer_columns(inputs: Sequence[Type], attributes: Attributes) -> Type:
    x, start, stop = inputs[0], integer(attributes, "start"), integer(attributes, "stop")
    if not 0 <= start < stop <= fixed(x.shape[-1]):
        raise ShapeError(f"wanted columns within {x}; got {start} to {stop}")
    return Type(x.dtype, (*x.shape[:-1], stop - start))


def _columns(inputs: Sequence[Array], attributes: Attributes) -> Array:
    start, stop = integer(attributes, "start"), integer(attributes, "stop")
    return np.ascontiguousarray(inputs[0][..., start:stop])


def _infer_repeat(inputs: Sequence[Type], attributes: Attributes) -> Type:
    x, count = inputs[0], integer(attributes, "n")
    if len(x.shape) != 3 or x.shape[1] != 1 or count < 1:
        raise ShapeError(f"wanted x [T, 1, d] and n above 0; got {x} and {count}")
    return Type(x.dtype, (x.shape[0], count, x.shape[2]))


reshape = Op("reshape", "layout", infer=_infer_reshape, reference=_reshape,
             samples=lambda: [Sample((f32(ROWS, 24),), {"tail": (4, 6)}),
                              Sample((f32(ROWS, 4, 6),), {"tail": (24,)})],
             attributes={"tail": None, "keep": 1}, view=True, rowwise=(0,))  # fmt: skip
permute = Op("permute", "layout", infer=_infer_permute,
             reference=lambda inputs, at: np.ascontiguousarray(np.transpose(inputs[0], integers(at, "axes"))),
             samples=lambda: [Sample((f32(5, 4, 6),), {"axes": (1, 0, 2)}),
                              Sample((f32(ROWS, 4, 6),), {"axes": (0, 2, 1)}),
                              Sample((f32(5, 4, 6),), {"axes": (2, 0, 1)}),
                              Sample((f32(3, 5),), {"axes": (1, 0)}),
                              Sample((f32(ROWS, 3, 4, 6),), {"axes": (0, 2, 1, 3)}),
                              Sample((f32(2, 5, 3, 7),), {"axes": (3, 1, 0, 2)})],
             attributes={"axes": None}, rowwise=(0,))  # fmt: skip
# No samples: its operand is a node with several results, which only fused ops make.
part = Op("part", "layout", infer=_infer_part, reference=_part, samples=list,
          attributes={"index": None}, view=True)  # fmt: skip
concat = Op("concat", "layout", infer=_infer_concat,
            reference=lambda inputs, at: np.concatenate(inputs, axis=-1),
            samples=lambda: [Sample((f32(ROWS, 5), f32(ROWS, 9)))], rowwise=(0, 1))  # fmt: skip
columns = Op("columns", "layout", infer=_infer_columns, reference=_columns,
             samples=lambda: [Sample((f32(ROWS, 40),), {"start": 8, "stop": 24})],
             attributes={"start": None, "stop": None}, rowwise=(0,))  # fmt: skip
repeat = Op("repeat", "layout", infer=_infer_repeat,
            reference=lambda inputs, at: np.repeat(inputs[0], integer(at, "n"), axis=1),
            samples=lambda: [Sample((f32(ROWS, 1, d),), {"n": n}) for d, n in ((64, 3), (7, 1))],
            attributes={"n": None}, rowwise=(0,))  # fmt: skip


def maker(node: Node) -> Node:
    """The node that computes a value: of a `part`, the node with all results; else the node itself."""
    return node.inputs[0] if node.op is part else node
