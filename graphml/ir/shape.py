"""Shapes in NumPy order whose dimensions are numbers or symbols with an upper bound.

A program is compiled for the bounds and runs with any value below them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from graphml.errors import ShapeError


@dataclass(frozen=True)
class Symbol:
    """A dimension known only at run time: between 1 and `bound`."""

    name: str
    bound: int

    def __repr__(self) -> str:
        return f"{self.name}<={self.bound}"


Dim = int | Symbol
Shape = tuple[Dim, ...]


def bound(dim: Dim) -> int:
    """The largest value that the dimension can take."""
    return dim.bound if isinstance(dim, Symbol) else dim


def fixed(dim: Dim) -> int:
    """The dimension, which must be a number; a symbol is a `ShapeError`."""
    if isinstance(dim, Symbol):
        raise ShapeError(f"wanted a dimension known when the graph is built; got {dim}")
    return dim


def bounds(shape: Shape) -> tuple[int, ...]:
    """The largest shape."""
    return tuple([dim.bound if isinstance(dim, Symbol) else dim for dim in shape])


def max_elements(shape: Shape) -> int:
    """Elements of the largest shape."""
    return prod(bounds(shape))


def resolve(shape: Shape, dims: Mapping[str, int]) -> tuple[int, ...]:
    """The shape with every symbol replaced by its value; a missing or too large value is a `ShapeError`."""
    sizes = list[int]()
    for dim in shape:  # of every step; a generator takes several times as long
        sizes.append(_value(dim, dims) if isinstance(dim, Symbol) else dim)
    return tuple(sizes)


def _value(symbol: Symbol, dims: Mapping[str, int]) -> int:
    if symbol.name not in dims:
        raise ShapeError(f"no value for dimension {symbol.name}; got {dict(dims)}")
    value = dims[symbol.name]
    if not 0 <= value <= symbol.bound:
        raise ShapeError(f"dimension {symbol.name} is at most {symbol.bound}; got {value}")
    return value


def show(shape: Shape) -> str:
    """`[T<=512, 576]`."""
    return "[" + ", ".join(map(repr, shape)) + "]"
