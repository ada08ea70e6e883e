"""Ops by name on arrays, for tests of what they mean."""

from __future__ import annotations

import numpy as np

from graphml.ir.builder import complete
from graphml.ir.op import Array, Attribute
from graphml.ir.ops import table


def run(name: str, *arrays: Array, **attributes: Attribute) -> Array:
    op = table()[name]
    assert op.reference is not None
    return op.reference(arrays, complete(op, attributes))


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
