"""Q8_0: blocks of 32 in 34 bytes: d, 32 signed bytes; x = d q."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._block_reader import block_reader, make_collect, make_collect_halves
from graphml_cpu.kernels.formats._groups import CpuFormatReader, block_halves, load_quarters, signed_bytes
from graphml_cpu.kernels.formats._unpack import F32x32, I8x32, I32x32, floats, inverse, is_finite
from graphml_cpu.kernels.formats._words import by_quarter
from graphml_cpu.kernels.share import Number, Vector
from graphml_cpu.simd import (
    absolute,
    convert,
    f32,
    load,
    load_f16,
    max_lanes,
    select,
    splat,
    store,
    store_f16,
    zero,
)


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        for block in range(k // 32):
            at = src + block * 34
            store(dst + block * 128, floats(load(I8x32, at + 2)) * load_f16(at))

    return decode


@inline
def _round_half_away(values: Vector) -> Vector:
    """The nearest integers, int32, halves away from zero: what is cut off decides."""
    whole = convert(I32x32, values)
    rest = values - convert(F32x32, whole)
    up = select(rest >= 0.5, splat(I32x32, 1), zero(I32x32))
    down = select(rest <= -0.5, splat(I32x32, 1), zero(I32x32))
    return whole + up - down


def make_encode() -> Any:
    """`encode(src, dst, k)`: the largest magnitude of a block becomes 127."""

    @inline
    def encode(src: int, dst: int, k: int) -> None:
        for block in range(k // 32):
            values, to = load(F32x32, src + block * 128), dst + block * 34
            scale: Number = f32(float("nan"))
            if is_finite(values):
                scale = max_lanes(absolute(values)) / f32(127.0)
            else:
                values = zero(F32x32)
            store_f16(to, scale)
            store(to + 2, convert(I8x32, _round_half_away(values * inverse(scale))))

    return encode


@inline
def _blocks(a: int, b: int, c: int, d: int) -> Any:
    low = signed_bytes(load_quarters(a + 2, b + 2, c + 2, d + 2))
    high = signed_bytes(load_quarters(a + 18, b + 18, c + 18, d + 18))
    return (((low, high), (block_halves(a, b, c, d),), ()),)


def _make_read(rest: bool) -> Any:
    low, high = make_collect(34, 2, 16, rest), make_collect(34, 18, 16, rest)
    scales = make_collect_halves(34, 0, rest)

    @inline
    def read(at: int, size: int) -> Any:
        values = signed_bytes(low(at, size)), signed_bytes(high(at, size))
        return ((values, (scales(at, size),), ()),)

    return read


def _make_words(rest: bool) -> Any:
    low, high = (make_collect(34, offset, 16, rest, by_word=True) for offset in (2, 18))

    @inline
    def words(a: int, b: int, c: int, d: int, size: int) -> Any:
        p, q, r, s = by_quarter(low(a, size), low(b, size), low(c, size), low(d, size))
        t, u, v, w = by_quarter(high(a, size), high(b, size), high(c, size), high(d, size))
        early = signed_bytes(p), signed_bytes(q), signed_bytes(r), signed_bytes(s)
        return early, (signed_bytes(t), signed_bytes(u), signed_bytes(v), signed_bytes(w))

    return words


def make_read() -> CpuFormatReader:
    """Four blocks a unit; signed bytes."""
    return block_reader(34, _make_read, _blocks, halves=1, make_words=_make_words, signed=True)
