"""A vector of a row, or the few numbers that are left at its end."""

from __future__ import annotations

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import F32, WIDTH, load, load_partial, store, store_partial


@inline
def get(at: int, count: int) -> Vector:
    """The `count` float32 at an address, at most a vector of them; other lanes are 0."""
    return load(F32, at) if count >= WIDTH else load_partial(F32, at, count)


@inline
def put(at: int, v: Vector, count: int) -> None:
    """Store the first `count` lanes, at most a vector of them."""
    if count >= WIDTH:
        store(at, v)
    else:
        store_partial(at, v, count)
