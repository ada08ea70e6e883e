"""TQ1_0: blocks of 256 in 54 bytes: 48 bytes of five ternary digits, 4 of four, d; x = d (t - 1)."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.share import Number
from graphml_cpu.simd import convert, load, load_f16, store, vector


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
