"""Reductions over the last dimension, softmax among them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphml.ir.op import Array, Attributes, Op, Type
from graphml.ir.ops.rules import same_shape, singles, want_float


def _infer_sum(inputs: Sequence[Type], attributes: Attributes) -> Type:
    want_float(inputs)
    return Type(inputs[0].dtype, (*inputs[0].shape[:-1], 1))


def _sum(inputs: Sequence[Array], attributes: Attributes) -> Array:
    return np.asarray(inputs[0].astype(np.float64).sum(-1, keepdims=True), dtype=np.float32)


def _softmax(inputs: Sequence[Array], attributes: Attributes) -> Array:
    x = inputs[0].astype(np.float64)
    weight = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(weight / weight.sum(axis=-1, keepdims=True), dtype=np.float32)


softmax = Op("softmax", "reduce", infer=same_shape, reference=_softmax, samples=singles, inplace=(0,))
sum_rows = Op("sum_rows", "reduce", infer=_infer_sum, reference=_sum, samples=singles)
