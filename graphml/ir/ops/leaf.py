"""Leaves: values that come from outside the graph. Their type is given, not inferred."""

from __future__ import annotations

from collections.abc import Sequence

from graphml.errors import GraphError
from graphml.ir.op import Array, Attributes, Op, Type


def _given(inputs: Sequence[Type], attributes: Attributes) -> Type:
    raise GraphError("the type of a leaf is given where it is made")


def _bound(inputs: Sequence[Array], attributes: Attributes) -> Array:
    raise GraphError("the value of a leaf is given by who runs the graph")


def _leaf(name: str) -> Op:
    return Op(name, "leaf", infer=_given, reference=_bound, samples=list)


input_leaf = _leaf("input")  # passed in at every step: token ids, positions, block tables
weight_leaf = _leaf("weight")  # a tensor of the model file
state_leaf = _leaf("state")  # kept between steps and changed by ops that write: key-value cache

LEAVES = frozenset({input_leaf, weight_leaf, state_leaf})
