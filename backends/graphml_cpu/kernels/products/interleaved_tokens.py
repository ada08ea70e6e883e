"""Packed rows of activations as `interleaved_rows` wants them: by four bytes, then by block.

Of each row and group of 128 columns there are eight times 16 bytes, those with bytes 4c to 4c + 3 of the four
blocks, for the lower half of the blocks and for the upper; then four numbers, one for each block: scales,
what integer sums begin with, and sums for minima. For each group those of all rows lie together. Each 16
bytes are read into all quarters of a vector, which are four rows of weights (`interleaved_sets`). Knows the
packed layout and what a `CpuFormatReader` says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu import packed
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._groups import CpuFormatReader, F32x4
from graphml_cpu.kernels.products.integer_groups import I32x16, make_operand
from graphml_cpu.simd import load, load_i64, shuffle_by, store

SCALE = 8 * 16
SEEDS = SCALE + 16

_by_word = shuffle_by([4 * block + word for word in range(4) for block in range(4)])
_nth = [shuffle_by([4 * block + word for block in range(4)]) for word in range(3)]
_first, _second, _third = _nth


def number_of_seeds(reader: CpuFormatReader) -> int:
    """How many vectors integer sums begin with: none, one, or one for each half of the blocks."""
    return 0 if make_operand(reader).shift is None else reader.scales


def minima_at(reader: CpuFormatReader) -> int:
    """Where the sums for minima lie behind a token's group."""
    return SEEDS + 16 * number_of_seeds(reader)


def token_bytes(reader: CpuFormatReader) -> int:
    """Bytes of a group of a token."""
    return minima_at(reader) + 16 * reader.minima


def make_interleave_token(reader: CpuFormatReader) -> Callable[..., Any]:
    """An inline function `interleave(x, groups, to, step)`: a packed row to `to`, its groups `step` apart."""
    shift, seeds, minima = (
        make_operand(reader).shift or 0,
        number_of_seeds(reader),
        reader.minima,
    )
    sums_at = minima_at(reader)

    @inline
    def interleave(x: int, groups: int, to: int, step: int) -> None:
        for group in range(groups):
            at, place = x + group * packed.GROUP_BYTES, to + group * step
            store(place, _by_word(load(I32x16, at)))
            store(place + 64, _by_word(load(I32x16, at + packed.HIGH_HALF)))
            store(place + SCALE, load(F32x4, at + packed.SCALE))
            if seeds == 1:
                store(place + SEEDS, _third(load(I32x16, at + packed.SEEDS)) >> shift)
            if seeds == 2:
                both = load(I32x16, at + packed.SEEDS) >> shift
                store(place + SEEDS, _first(both))
                store(place + SEEDS + 16, _second(both))
            if minima == 1:
                store(place + sums_at, load(F32x4, at + packed.SUM))
            if minima == 2:
                store(place + sums_at, load(F32x4, at + packed.LOW_SUM))
                store(place + sums_at + 16, load(F32x4, at + packed.HIGH_SUM))

    return interleave


@inline
def row_address(x: int, x_stride: int, token: int) -> int:
    """Rows that lie `x_stride` bytes apart: token's."""
    return x + token * x_stride


@inline
def listed_address(records: int, record_bytes: int, token: int) -> int:
    """Rows whose addresses stand in records: token's."""
    found: int = load_i64(records + token * record_bytes)
    return found
