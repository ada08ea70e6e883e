"""Rows of float32 -> rows of encoded blocks: what all formats share. `LANES` blocks are encoded at once.

Blocks are transposed into scratch memory, a lane each, encoded there, and transposed back. Lanes past the
last block hold it once more. Knows memory, rows and threads; no format.
"""

from __future__ import annotations

from collections.abc import Callable

import graphml_quant

from graphml_cpu.compiler import Address, Int
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders import ROW_MEANS, halves, make_encode
from graphml_cpu.kernels.encoders._lanes import F32, F32_BYTES, I32, LANES, U8
from graphml_cpu.kernels.share import share
from graphml_cpu.layouts import encoder_scratch
from graphml_cpu.simd import (
    any_lane,
    bitcast,
    f32,
    load,
    load_columns,
    load_f32,
    maximum,
    splat,
    store,
    store_columns,
    store_f32,
    store_i32,
    store_i64,
    vector,
    zero,
)

_F32x16, _U8x16 = vector("f32", 16), vector("u8", 16)
_INFINITY_BITS = 0x7F800000
_FAR_BEYOND_BITS = 0x4F000000  # of 2^31: no scale of half precision reaches it; squares do not overflow yet


@inline
def _load_blocks(table: int, elements: int, destination: int) -> None:
    """The blocks at the addresses of a table, element by element, a lane each."""
    for first in range(0, elements, 16):
        for lanes in range(0, LANES, 16):
            to = destination + first * F32_BYTES + lanes * 4
            load_columns(_F32x16, table + lanes * 8, first * 4, to, F32_BYTES)


@inline
def _store_blocks(source: int, size: int, table: int) -> None:
    """The encoded blocks, `size` bytes from 16 on, to the addresses of a table."""
    for chunk in range(0, size, 16):
        first = min(chunk, size - 16)  # the last one begins before the end of the one before
        for lanes in range(0, LANES, 16):
            store_columns(_U8x16, source + first * LANES + lanes, LANES, table + lanes * 8, first)


@inline
def _are_below(values: int, elements: int, bits: int) -> bool:
    """Whether all magnitudes are below that of these bits; NaN is above all."""
    magnitudes, most = splat(I32, 0x7FFFFFFF), zero(I32)
    for element in range(elements):
        most = maximum(bitcast(I32, load(F32, values + element * F32_BYTES)) & magnitudes, most)
    return not any_lane(most >= splat(I32, bits))


@inline
def _is_finite_half(high_byte: int) -> bool:
    return not any_lane((load(U8, high_byte) & 0x7C) == splat(U8, 0x7C))


@inline
def _has_finite_scales(encoded: int, first: int, second: int) -> bool:
    """Whether the halves at two bytes of blocks are; a place below 0 has none."""
    if first >= 0 and not _is_finite_half(encoded + (first + 1) * LANES):
        return False
    return second < 0 or _is_finite_half(encoded + (second + 1) * LANES)


def make_encode_blocks(format: str, weighted: bool) -> Callable[..., None]:
    """out, `blocks` encoded blocks, of x, float32; rows have `row_blocks` blocks.

    importance float32 [columns], of `weighted` kernels; means float32 [rows]: of `make_row_means`. scratch:
    `layouts.encoder_scratch` of this thread. flaw int32 [1] becomes 1 if a value is not finite or a scale not
    within half precision; the block that it is in is not encoded.
    """
    layout = graphml_quant.by_name(format)
    elements, size = layout.block_elements, layout.block_bytes
    encode = make_encode(format, weighted)
    first, second = halves(format)
    limit = _INFINITY_BITS if first < 0 else _FAR_BEYOND_BITS
    has_means = weighted and format in ROW_MEANS
    memory = encoder_scratch(elements, size, LANES)
    values, weights, encoded, free = memory.values, memory.weights, memory.encoded, memory.free

    def encode_blocks(
        ith: Int, nth: Int, x: Address, out: Address, importance: Address, means: Address, scratch: Address,
        flaw: Address, blocks: Int, row_blocks: Int,
    ) -> None:  # fmt: skip
        begin, end = share(ith, nth, (blocks + LANES - 1) // LANES)
        sources, targets, influences = scratch, scratch + LANES * 8, scratch + LANES * 16
        lane_means = scratch + LANES * 24
        for batch in range(begin, end):
            for lane in range(LANES):
                block = min(batch * LANES + lane, blocks - 1)
                store_i64(sources + lane * 8, x + block * (elements * 4))
                store_i64(targets + lane * 8, out + block * size)
                if weighted:
                    row = block // row_blocks
                    store_i64(influences + lane * 8, importance + (block - row * row_blocks) * (elements * 4))
                    if has_means:
                        store_f32(lane_means + lane * 4, load_f32(means + row * 4))
            _load_blocks(sources, elements, scratch + values)
            if not _are_below(scratch + values, elements, limit):
                store_i32(flaw, 1)
                continue
            if weighted:
                _load_blocks(influences, elements, scratch + weights)
            mean = load(F32, lane_means) if has_means else zero(F32)
            encode(scratch + values, scratch + weights, mean, scratch + free, scratch + encoded)
            if not _has_finite_scales(scratch + encoded, first, second):
                store_i32(flaw, 1)
                continue
            _store_blocks(scratch + encoded, size, targets)

    return encode_blocks


def make_row_means() -> Callable[..., None]:
    """means float32 [rows] = the mean of the squares of each row of x, float32 [rows, n], n a multiple of 16.

    Added from the first element to the last. scratch: as of `make_encode_blocks`.
    """

    def row_means(
        ith: Int, nth: Int, x: Address, means: Address, scratch: Address, n: Int, rows: Int
    ) -> None:
        begin, end = share(ith, nth, (rows + LANES - 1) // LANES)
        for batch in range(begin, end):
            for lane in range(LANES):
                row = min(batch * LANES + lane, rows - 1)
                store_i64(scratch + lane * 8, x + row * (n * 4))
            tile = scratch + LANES * 8
            total = zero(F32)
            for first in range(0, n, 16):
                for lanes in range(0, LANES, 16):
                    load_columns(_F32x16, scratch + lanes * 8, first * 4, tile + lanes * 4, F32_BYTES)
                for column in range(16):
                    value = load(F32, tile + column * F32_BYTES)
                    total += value * value
            store(tile, total / f32(n))
            for lane in range(min(LANES, rows - batch * LANES)):
                store_f32(means + (batch * LANES + lane) * 4, load_f32(tile + lane * 4))

    return row_means
