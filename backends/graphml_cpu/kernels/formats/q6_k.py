"""Q6_K: blocks of 256 in 210 bytes.

2 x 64 bytes of nibbles, 2 x 32 of upper bit pairs, 16 s, d; x = d s (q - 32).
"""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._groups import (
    CpuFormatReader,
    U8x64,
    broadcast16,
    load_quarters,
    pick_quarters,
    pick_words,
    rotate_quarters,
    shift_quarters,
)
from graphml_cpu.kernels.formats._row_sums import (
    halves_of_blocks,
    quarter_sums,
    seeds_by_block,
    tokens_by_block,
)
from graphml_cpu.kernels.formats._unpack import F32x16, I8x16, U8x32, floats, pair, signed
from graphml_cpu.kernels.formats._words import by_word, halves_of, make_two_runs, run_twice
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import (
    convert,
    dot4,
    gather_f16,
    high_half,
    load,
    load_f16,
    low_half,
    shuffle_by,
    store,
    to_float,
)


@inline
def _half_block(dst: int, low: int, upper: int, scales: Vector) -> None:
    first, second, pairs = load(U8x32, low), load(U8x32, low + 32), load(U8x32, upper)
    store(dst, floats(signed((first & 15) | ((pairs << 4) & 48)) - 32) * pair(scales, 0))
    store(dst + 128, floats(signed((second & 15) | ((pairs << 2) & 48)) - 32) * pair(scales, 2))
    store(dst + 256, floats(signed((first >> 4) | (pairs & 48)) - 32) * pair(scales, 4))
    store(dst + 384, floats(signed((second >> 4) | ((pairs >> 2) & 48)) - 32) * pair(scales, 6))


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        for block in range(k // 256):
            at, to = src + block * 210, dst + block * 1024
            scales = convert(F32x16, load(I8x16, at + 192)) * load_f16(at + 208)
            _half_block(to, at, at + 128, low_half(scales))
            _half_block(to + 512, at + 64, at + 160, high_half(scales))

    return decode


_low_quarters, _high_quarters = pick_quarters((0, 2, 0, 2)), pick_quarters((1, 3, 1, 3))
_nibbles, _pairs = shift_quarters((0, 0, 4, 4)), rotate_quarters((28, 30, 0, 2))
_low_1, _high_1 = shuffle_by((0, 2, 4, 6)), shuffle_by((1, 3, 5, 7))
_low_2, _high_2 = shuffle_by((8, 10, 12, 14)), shuffle_by((9, 11, 13, 15))


@inline
def half_scales(scales: Vector) -> tuple[tuple[Vector, Vector], tuple[Vector, Vector]]:
    """From one scale per 16 weights, in their order, those of a reader's groups (Q2_K's and Q3_K's too)."""
    return (_low_1(scales), _high_1(scales)), (_low_2(scales), _high_2(scales))


_by_row = shuffle_by([row for row in range(4) for _ in range(4)])
_low_of_first, _high_of_first, _low_of_second, _high_of_second = (
    pick_words([16 * row + place + 2 * block for row in range(4) for block in range(4)], top=True)
    for place in (0, 1, 8, 9)
)


@inline
def _read_numbers(a: int, b: int, c: int, d: int) -> Any:
    numbers = load_quarters(a + 192, b + 192, c + 192, d + 192)
    scale = _by_row(gather_f16(a + 208, (0, b - a, c - a, d - a)))
    low, high = to_float(_low_of_first(numbers) >> 24), to_float(_high_of_first(numbers) >> 24)
    first = low * scale, high * scale
    low, high = to_float(_low_of_second(numbers) >> 24), to_float(_high_of_second(numbers) >> 24)
    return (first, ()), ((low * scale, high * scale), ())


@inline
def _values(low: int, upper: int) -> tuple[Vector, Vector]:
    packed = load(U8x64, low)
    first = (_nibbles(_low_quarters(packed)) & 15) | (_pairs(broadcast16(upper)) & 48)
    return first, (_nibbles(_high_quarters(packed)) & 15) | (_pairs(broadcast16(upper + 16)) & 48)


@inline
def _read(at: int) -> Any:
    first, second = half_scales(convert(F32x16, load(I8x16, at + 192)) * load_f16(at + 208))
    return (_values(at, at + 128), first, ()), (_values(at + 64, at + 160), second, ())


_pairs_of_low, _pairs_of_high = rotate_quarters((28, 28, 30, 30)), rotate_quarters((0, 0, 2, 2))


@inline
def _of_a_row(low: int, upper: int, tokens: Any, seeds: Any) -> tuple[Vector, Vector]:
    both, pairs = load(U8x64, low), run_twice(upper)
    first, last = (both & 15) | (_pairs_of_low(pairs) & 48), (both >> 4) | (_pairs_of_high(pairs) & 48)
    return dot4(seeds[0], first, tokens[0]), dot4(seeds[1], last, tokens[1])


@inline
def _sums(a: int, b: int, c: int, d: int, group: int, x: int) -> Any:
    at, upper = 64 * group, 128 + 32 * group
    tokens, seeds = tokens_by_block(x), seeds_by_block(x, 2)
    p, q = _of_a_row(a + at, a + upper, tokens, seeds), _of_a_row(b + at, b + upper, tokens, seeds)
    r, s = _of_a_row(c + at, c + upper, tokens, seeds), _of_a_row(d + at, d + upper, tokens, seeds)
    return halves_of_blocks(quarter_sums(p[0], q[0], r[0], s[0]), quarter_sums(p[1], q[1], r[1], s[1]))


# Blocks 0 and 1 are the low nibbles of two runs, 2 and 3 the high ones.
_blocks_of_runs = make_two_runs(lambda block: (block // 2, block % 2))


@inline
def _blocks_with_pairs(nibbles: Vector, pairs: Vector) -> Any:
    low = (nibbles & 15) | (_pairs_of_low(pairs) & 48)
    return _blocks_of_runs(low, (nibbles >> 4) | (_pairs_of_high(pairs) & 48))


@inline
def _read_words(a: int, b: int, c: int, d: int, group: int) -> Any:
    at, upper = 64 * group, 128 + 32 * group
    p, q, r, s = by_word(load(U8x64, a + at), load(U8x64, b + at), load(U8x64, c + at), load(U8x64, d + at))
    t, u, v, w = by_word(
        run_twice(a + upper), run_twice(b + upper), run_twice(c + upper), run_twice(d + upper)
    )
    p, q = _blocks_with_pairs(p, t), _blocks_with_pairs(q, u)
    return halves_of(p, q, _blocks_with_pairs(r, v), _blocks_with_pairs(s, w))


def make_read() -> CpuFormatReader:
    """Six bits, 32 too much; a scale per 16."""
    return CpuFormatReader(
        210, 210, 256, read=_read, groups=2, scales=2, offset=32, read_numbers=_read_numbers,
        read_words=_read_words, sums=_sums,
    )  # fmt: skip
