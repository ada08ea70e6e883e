"""IQ4_NL: blocks of 32 in 18 bytes: d, 16 bytes of nibbles i; x = d LEVELS[i]."""

from __future__ import annotations

from typing import Any

from graphml_quant.iq4_nl import LEVELS

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._groups import (
    Reader,
    block_halves,
    load_quarters,
    make_collect,
    make_collect_halves,
    make_rest,
)
from graphml_cpu.kernels.formats._unpack import I8x16, U8x16, floats, nibbles
from graphml_cpu.simd import constant_table, load, load_f16, lookup16, store

levels = constant_table(LEVELS.astype("int8").tobytes())


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        table = load(I8x16, levels())
        for block in range(k // 32):
            at = src + block * 18
            numbers = lookup16(table, nibbles(load(U8x16, at + 2)))
            store(dst + block * 128, floats(numbers) * load_f16(at))

    return decode


@inline
def _blocks(a: int, b: int, c: int, d: int) -> Any:
    table = load(I8x16, levels())
    both = load_quarters(a + 2, b + 2, c + 2, d + 2)
    values = lookup16(table, both & 15), lookup16(table, both >> 4)
    return ((values, (block_halves(a, b, c, d),), ()),)


_indices, _scales = make_collect(18, 2, 16), make_collect_halves(18, 0)


@inline
def _read(at: int) -> Any:
    table, both = load(I8x16, levels()), _indices(at)
    return (((lookup16(table, both & 15), lookup16(table, both >> 4)), (_scales(at),), ()),)


def make_read() -> Reader:
    """Four blocks a unit; levels, signed."""
    return Reader(
        72, block_bytes=18, block_elements=32, read=_read, read_rest=make_rest(18, _blocks), signed=True
    )
