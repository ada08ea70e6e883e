"""What a format's file says to kernels: how sixteen elements are unpacked, and where in a row they are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

UNIT = 16
"""Elements that are unpacked at a time: four quads of four neighbours each."""


GROUP = 32
"""Elements that share a scale of activations of 8 bits."""


@dataclass(frozen=True)
class Integers:
    """How numbers of a format meet activations of 8 bits: element = scale * number + offset.

    unpack: `@function` (weights, table, at, part, ALIGN) -> for each of `groups` groups of 32 neighbours: the
    first 16 and the last 16 signed numbers in order, four a word (u32x4 both), the scale of the first and of
    the last, and the offset: five values a group. place: `@function` (part, NUMBER) -> the block's group that
    the one of this number is. halves: whether the two scales differ; elsewhere the second is not looked at.
    wide: blocks are whole units of 16 bytes, and the weights are bound as u32x4.
    """

    unpack: Callable[..., Any]
    place: Callable[..., Any]
    groups: int = 1
    halves: bool = False
    wide: bool = False


@dataclass(frozen=True)
class GpuFormatReader:
    """How kernels read a format. Rows are cut into blocks, and each block into units of `UNIT` elements.

    block_elements, block_bytes: of a block; formats that store each element alone have blocks of one unit.
    unpack: `@function` (weights, table, at, part, ALIGN) -> four f32x4: the elements of unit `part` of the
    block whose first byte is `at`, a multiple of ALIGN (1, 2 or 4, known when compiling).
    place: `@function` (part, QUAD) -> the block's element that quad number QUAD of unit `part` begins with, a
    multiple of four. A layout decides which elements come out of the same bytes: a quad's are neighbours,
    quads need not be.
    table: what `unpack` looks up (u32 [any]), bound as a buffer beside the weights; None for most formats.
    element: `@function` (weights, row, i) -> element i of the row that begins at byte `row`, for formats that
    store each element alone: their rows may end within a unit. None for all others.
    integers: how products with activations of 8 bits read it; None where only its floats are read.
    """

    block_elements: int
    block_bytes: int
    unpack: Callable[..., Any]
    place: Callable[..., Any]
    table: Callable[[], np.ndarray[Any, np.dtype[np.uint32]]] | None = None
    element: Callable[..., Any] | None = None
    integers: Integers | None = None

    @property
    def parts(self) -> int:
        """Units of a block."""
        return self.block_elements // UNIT

    def row_bytes(self, k: int) -> int:
        """Bytes of a row of k elements."""
        if self.element:
            return k * self.block_bytes // UNIT
        return k // self.block_elements * self.block_bytes

    def align(self, k: int) -> int:
        """What the first byte of every block of rows of k elements is a multiple of: 1, 2 or 4."""
        return math.gcd(self.row_bytes(k), self.block_bytes, 4)
