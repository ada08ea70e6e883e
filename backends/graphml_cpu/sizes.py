"""Bytes of values as this backend lays them out. Several results of one node follow each other."""

from __future__ import annotations

from math import prod

from graphml.ir.op import Type
from graphml.ir.shape import bounds
from graphml_cpu.lowering.linear import stored_row_bytes

CACHE_LINE = 64


def value_bytes(kind: Type) -> int:
    """Bytes of a value at its bounds, a multiple of the cache line; of several results, those of all."""
    if kind.parts:
        return sum(map(value_bytes, kind.parts))
    size = prod(bounds(kind.shape)[:-1]) * stored_row_bytes(kind)
    return -(-size // CACHE_LINE) * CACHE_LINE


def part_offset(kind: Type, index: int) -> int:
    """Where a result begins in the value of a node that has several."""
    return sum(map(value_bytes, kind.parts[:index]))
