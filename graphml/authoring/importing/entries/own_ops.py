"""Ops of one's own with one operand: a part that computes the same, with default attributes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from graphml.authoring.importing.region import CatalogueEntry, Recognised, Region, concrete, same
from graphml.errors import GraphError
from graphml.ir.dtype import F32
from graphml.ir.op import Attribute, Type
from graphml.ir.op_table import own_ops
from graphml.ir.own_op import OwnOp

N_TOKENS, SEEDS = 4, (0, 1)
CLOSE = 1e-6  # the function's result is float32


def looks(region: Region) -> bool:
    """One value comes in, and some op has the region's shapes."""
    has_others = region.others(lambda name: not region.dependence.is_constant(name))
    return bool(own_ops()) and not has_others and any(True for _ in _candidates(region))


def _candidates(region: Region) -> Iterator[OwnOp]:
    """The ops that make a value of the last node's shape of one of the entry's."""
    x = Type(F32, concrete(region.shape, N_TOKENS))
    for op in own_ops().values():
        fits = isinstance(op, OwnOp) and op.reference is not None and len(op.declared.operands) == 1
        if not isinstance(op, OwnOp) or not fits or None in op.attributes.values():
            continue
        try:
            inferred = op.infer([x], _defaults(op))
        except GraphError:
            continue
        if inferred == Type(F32, concrete(region.shape_last, N_TOKENS)):
            yield op


def _defaults(op: OwnOp) -> dict[str, Attribute]:
    return {name: value for name, value in op.attributes.items() if value is not None}


def matches(region: Region) -> Recognised | None:
    """The op that agrees on every random value, small ones and large."""
    values = [region.random(N_TOKENS, seed, 10.0**seed).astype(np.float32) for seed in SEEDS]
    results = [region.run(x.astype(np.float64), N_TOKENS) for x in values]
    for op in _candidates(region):
        assert op.reference is not None
        try:
            outputs = [op.reference([x], _defaults(op)) for x in values]
        except GraphError:  # an op of something else, which these values are nothing for
            continue
        if all(same(y, mine.astype(np.float64), CLOSE) for y, mine in zip(results, outputs, strict=True)):
            return Recognised(op.name, region.last, {"x": region.entry})
    return None


ENTRY = CatalogueEntry("own op", looks, matches)
