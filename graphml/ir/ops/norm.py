"""Normalisations over the last dimension, without weights: a weight is a `mul`, a bias an `add`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from graphml.ir.op import Array, Attributes, Op, Sample, number
from graphml.ir.ops.rules import ROWS, f32, same_shape, singles, sized


def _divided(x: Array, length: Array) -> Array:
    return np.asarray(x / length, dtype=np.float32)


def _rms_norm(inputs: Sequence[Array], attributes: Attributes) -> Array:
    x = inputs[0].astype(np.float64)
    return _divided(x, np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + number(attributes, "eps")))


def _layer_norm(inputs: Sequence[Array], attributes: Attributes) -> Array:
    x = inputs[0].astype(np.float64)
    x = x - np.mean(x, axis=-1, keepdims=True)
    return _divided(x, np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + number(attributes, "eps")))


def _l2_norm(inputs: Sequence[Array], attributes: Attributes) -> Array:
    x = inputs[0].astype(np.float64)
    length = np.sqrt(np.sum(x * x, axis=-1, keepdims=True))
    return _divided(x, np.maximum(length, number(attributes, "eps")))


def _samples(size: float) -> Callable[[], list[Sample]]:
    """Rows of usual numbers, and some whose length is near eps."""
    return lambda: [*singles(), Sample((f32(ROWS, 64),), fill={0: sized(size)})]


rms_norm = Op("rms_norm", "norm", infer=same_shape, reference=_rms_norm, samples=_samples(1e-5**0.5),
              attributes={"eps": 1e-5}, inplace=(0,), rowwise=(0,))  # fmt: skip
layer_norm = Op("layer_norm", "norm", infer=same_shape, reference=_layer_norm, samples=_samples(1e-5**0.5),
                attributes={"eps": 1e-5}, inplace=(0,), rowwise=(0,))  # fmt: skip
l2_norm = Op("l2_norm", "norm", infer=same_shape, reference=_l2_norm, samples=_samples(1e-6 / 16),
             attributes={"eps": 1e-6}, inplace=(0,), rowwise=(0,))  # fmt: skip
