"""Cells of keys and values in blocks: how large a block is, and in which cell of its blocks a position is."""

from __future__ import annotations

from graphml.ir.op import Array

BLOCK_SIZE = 32  # cells
MAX_CELLS = 1 << 20  # of the longest context that programs are compiled for
TABLE_WIDTH = MAX_CELLS // BLOCK_SIZE  # blocks in a row of a program's block tables


def cells_of(blocks: Array, positions: Array, block_size: int = BLOCK_SIZE) -> Array:
    """The cells of some positions, int32, of a sequence whose blocks these are."""
    size = positions.dtype.type(block_size)
    cells: Array = blocks[positions // size] * size + positions % size
    return cells
