"""TQ1_0: blocks of 256 in 54 bytes: 48 bytes of five ternary digits, 4 of four, d; x = d (t - 1)."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._groups import CpuFormatReader, U8x64, broadcast16, everywhere
from graphml_cpu.kernels.share import Number, Vector
from graphml_cpu.simd import (
    bitcast,
    concatenate,
    constant_lanes,
    convert,
    load,
    load_f16,
    select,
    shuffle_by,
    splat,
    store,
    vector,
    zero,
)


def _make_run(count: int) -> Any:
    """`run(src, dst, digits, d)`: all first digits of `count` bytes, then all second ones, and so on."""
    packed, wide, single = vector("u8", count), vector("u16", count), vector("f32", count)
    small = vector("i16", count)

    @inline
    def run(src: int, dst: int, digits: int, d: Number) -> None:
        rest = convert(wide, load(packed, src))
        for digit in range(digits):
            trits = convert(small, (rest * 3) >> 8) - 1
            store(dst + digit * count * 4, convert(single, trits) * d)
            rest = (rest * 3) & 255

    return run


_run_32, _run_16, _run_4 = _make_run(32), _make_run(16), _make_run(4)


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        for block in range(k // 256):
            at, to = src + block * 54, dst + block * 1024
            d = load_f16(at + 52)
            _run_32(at, to, 5, d)
            _run_16(at + 32, to + 640, 5, d)
            _run_4(at + 48, to + 960, 4, d)

    return decode


_U8x4, _U8x16, _U16x32 = vector("u8", 4), vector("u8", 16), vector("u16", 32)
_four_times = shuffle_by([*range(4)] * 4)


def _make_digits(places: list[int]) -> Any:
    """An inline function: one digit of each of 64 bytes, 0 to 2; digit 0 is the top one.

    `places`: which digit, for the same number of bytes each.
    """
    powers = constant_lanes(_U16x32, [3 ** places[lane * len(places) // 32] for lane in range(32)])

    @inline
    def digits(packed: Vector) -> Vector:
        pairs = bitcast(_U16x32, packed)
        top = bitcast(U8x64, ((pairs * powers()) & 0x00FF) | ((pairs & 0xFF00) * powers()))
        # The top digit is byte * 3 >> 8.
        nonzero = select(top > 85, splat(U8x64, 1), zero(U8x64))
        return select(top > 170, splat(U8x64, 2), nonzero)

    return digits


_first_four = _make_digits([0, 1, 2, 3])
_low_of_second = _make_digits([4, 0, 2, 4])
_high_of_second = _make_digits([4] * 8 + [1] * 8 + [3] * 8 + [0, 0, 1, 1, 2, 2, 3, 3])


@inline
def _read(at: int) -> Any:
    scales = (everywhere(load_f16(at + 52)),)
    first = _first_four(broadcast16(at)), _first_four(broadcast16(at + 16))
    run, rest = load(_U8x16, at + 32), _four_times(load(_U8x4, at + 48))
    low = concatenate(concatenate(load(_U8x16, at), run), concatenate(run, run))
    high = concatenate(concatenate(load(_U8x16, at + 16), run), concatenate(run, rest))
    return (first, scales, ()), ((_low_of_second(low), _high_of_second(high)), scales, ())


def make_read() -> CpuFormatReader:
    """Ternary digits, 1 too much; one scale."""
    return CpuFormatReader(54, block_bytes=54, block_elements=256, read=_read, groups=2, offset=1)
