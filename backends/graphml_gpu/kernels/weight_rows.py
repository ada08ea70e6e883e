"""Rows of weights of any format and of activations, as products and look-ups read them: 16 elements at once.

A row is cut into units of sixteen elements; which sixteen is the format's choice (`formats`), and activations
are read in the same order. Knows no product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graphml_gpu.kernels.formats import reader
from graphml_gpu.language import Read, f32, f32x4, function, select, u32


@dataclass(frozen=True)
class WeightRowFormat:
    """How rows of weights are read, known when compiling.

    name: the format's. align: what every block's first byte is a multiple of. even: rows are whole units.
    """

    name: str
    align: int
    even: bool


@function
def row_bytes(k: u32, FORMAT: str) -> Any:
    """Bytes of a row of k elements."""
    if reader(FORMAT).element is not None:
        return k * (reader(FORMAT).block_bytes // 16)
    return k // reader(FORMAT).block_elements * reader(FORMAT).block_bytes


@function
def place(unit: u32, QUAD: Any, FORMAT: str) -> Any:
    """The element of the row that quad QUAD (0 to 3; known when compiling, or not) of a unit begins with."""
    parts = reader(FORMAT).parts
    return unit // parts * reader(FORMAT).block_elements + reader(FORMAT).place(unit % parts, QUAD)


@function
def unpacked(w: Read[u32], table: Read[u32], row: u32, unit: u32, k: u32, FORMAT: WeightRowFormat) -> Any:
    """The elements of a unit of the row of k elements at byte `row`: four f32x4, zero beyond the row."""
    if FORMAT.even:
        parts = reader(FORMAT.name).parts
        at = row + unit // parts * reader(FORMAT.name).block_bytes
        return reader(FORMAT.name).unpack(w, table, at, unit % parts, FORMAT.align)
    first = unit * 16
    return (
        some(w, row, first, k, FORMAT.name),
        some(w, row, first + 4, k, FORMAT.name),
        some(w, row, first + 8, k, FORMAT.name),
        some(w, row, first + 12, k, FORMAT.name),
    )


@function
def some(w: Read[u32], row: u32, first: u32, k: u32, FORMAT: str) -> Any:
    """Four elements from `first` on, zero beyond the row."""
    return f32x4(
        one(w, row, first, k, FORMAT),
        one(w, row, first + 1, k, FORMAT),
        one(w, row, first + 2, k, FORMAT),
        one(w, row, first + 3, k, FORMAT),
    )


@function
def one(w: Read[u32], row: u32, i: u32, k: u32, FORMAT: str) -> Any:
    """Element i of a row of a format that stores each alone, zero beyond the row."""
    element: Any = reader(FORMAT).element
    value = element(w, row, min(i, k - 1))
    return select(i < k, value, 0.0)


@function
def quad_of(x: Any, row: u32, i: u32, k: u32, EVEN: bool, ELEMENT: Any) -> Any:
    """Elements i to i + 3 of the row of k activations that begins at element `row`, zero beyond the row.

    ELEMENT: what the buffer holds: f32x4 where k is a multiple of four, else f32.
    """
    if ELEMENT is f32x4 and EVEN:
        return x[(row + i) >> 2]
    if ELEMENT is f32x4:
        return select(i < k, x[(row + min(i, k - 4)) >> 2], f32x4(0.0))
    return f32x4(
        single(x, row, i, k), single(x, row, i + 1, k), single(x, row, i + 2, k), single(x, row, i + 3, k)
    )


@function
def single(x: Read[f32], row: u32, i: u32, k: u32) -> f32:
    """Element i of a row of activations, zero beyond the row."""
    return select(i < k, x[row + min(i, k - 1)], 0.0)
