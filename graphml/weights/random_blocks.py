"""Random weights made as blocks of a format, without an encoder: random bits, and scales of the right size.

All numbers of a block are valid and nearly uniform over the format's values; their standard deviation is the
requested one, measured by decoding a sample. Knows formats; nothing of files or models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

import graphml_quant
import numpy as np
from graphml_quant.format import Format
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

CHUNK_BYTES = 4 << 20
SAMPLE_BLOCKS = 512
# Float16 fields of a block: offset, and size in proportion to the first, so that the mean is 0.
_HALVES: Mapping[str, tuple[tuple[int, float], ...]] = {
    "q4_0": ((0, 1.0),), "q4_1": ((0, 1.0), (2, -7.5)), "q5_0": ((0, 1.0),), "q5_1": ((0, 1.0), (2, -15.5)),
    "q8_0": ((0, 1.0),), "q2_k": ((80, 1.0), (82, 1.5)), "q3_k": ((108, 1.0),), "q4_k": ((0, 1.0), (2, 7.5)),
    "q5_k": ((0, 1.0), (2, 15.5)), "q6_k": ((208, 1.0),), "iq4_nl": ((0, 1.0),), "iq4_xs": ((0, 1.0),),
    "iq1_s": ((0, 1.0),), "iq2_xxs": ((0, 1.0),), "iq2_xs": ((0, 1.0),), "iq2_s": ((0, 1.0),),
    "iq3_xxs": ((0, 1.0),), "iq3_s": ((0, 1.0),), "tq1_0": ((52, 1.0),), "tq2_0": ((64, 1.0),),
    "q1_0": ((0, 1.0),), "q2_0": ((0, 1.0),),
}  # fmt: skip
# Scales of one byte each (exponents, or small floats), the same in all blocks.
_BYTES: Mapping[str, int] = {"mxfp4": 1, "nvfp4": 4}
# Scales of either sign: encoders use the extreme value as the block's scale, or the mean would not be 0.
_SIGNED = ("q4_0", "q5_0", "q3_k", "q6_k", "iq4_nl", "iq4_xs", "tq2_0", "q2_0")


def random_blocks(format: Format, n_blocks: int, deviation: float, seed: int) -> Iterator[Bytes]:
    """Chunks of n_blocks blocks of that standard deviation, uint8 [n, block_bytes].

    The bytes depend on the seed alone.
    """
    generator = np.random.Generator(np.random.SFC64(seed))
    fill = _filler(format, deviation)
    most = max(CHUNK_BYTES // format.block_bytes, 1)
    for start in range(0, n_blocks, most):
        yield fill(generator, min(most, n_blocks - start))


_Fill = Callable[[np.random.Generator, int], Bytes]


@lru_cache(maxsize=256)
def _filler(format: Format, deviation: float) -> _Fill:
    """The function from a generator and a number of blocks to the blocks."""
    if format.name in ("f32", "f16", "bf16"):
        return _normal(format, deviation)
    if format.name in _BYTES:
        return _with_byte_scales(format, deviation)
    sample = _with_halves(format, 1.0)(np.random.Generator(np.random.SFC64(0)), SAMPLE_BLOCKS)
    return _with_halves(format, deviation / _spread(format, sample))


def _spread(format: Format, blocks: Bytes) -> float:
    return float(format.decode(blocks).astype(np.float64).std())


def _random(generator: np.random.Generator, format: Format, count: int) -> Bytes:
    n_bytes = count * format.block_bytes
    words: NDArray[np.uint64] = generator.bit_generator.random_raw(-(-n_bytes // 8))
    return words.view(np.uint8)[:n_bytes].reshape(count, format.block_bytes)


def _normal(format: Format, deviation: float) -> _Fill:
    """Plain numbers without blocks: from 65536 normal ones, chosen by 16 random bits each."""
    values = (deviation * np.random.default_rng(0).standard_normal(1 << 16)).astype(np.float32)
    if format.name == "bf16":
        words: NDArray[np.generic] = (values.view(np.uint32) >> np.uint32(16)).astype("<u2")
    else:
        words = values.astype("<f2" if format.name == "f16" else "<f4")

    def fill(generator: np.random.Generator, count: int) -> Bytes:
        numbers: NDArray[np.uint64] = generator.bit_generator.random_raw(-(-count // 4))
        picked = np.take(words, numbers.view(np.uint16)[:count])
        return picked.view(np.uint8).reshape(count, format.block_bytes)

    return fill


def _with_halves(format: Format, scale: float) -> _Fill:
    """Blocks with float16 scales between half and one and a half times `scale`."""
    sizes = scale * np.linspace(0.5, 1.5, 256)
    if format.name in _SIGNED:
        sizes[::2] *= -1
    fields = _HALVES.get(format.name, ((0, 1.0),))
    tables = [(at, np.clip(factor * sizes, -60000, 60000).astype("<f2").view("<u2")) for at, factor in fields]

    def fill(generator: np.random.Generator, count: int) -> Bytes:
        blocks = _random(generator, format, count)
        if format.name == "iq1_m":
            _spread_over_nibbles(blocks, tables[0][1])
            return blocks
        which = blocks[:, fields[0][0]].copy()
        for at, table in tables:
            blocks[:, at : at + 2] = np.take(table, which).view(np.uint8).reshape(count, 2)
        _legal(format.name, blocks)
        return blocks

    return fill


def _legal(name: str, blocks: Bytes) -> None:
    """Replace bytes that no encoder writes, in place."""
    if name == "q8_0":
        np.maximum(blocks[:, 2:].view(np.int8), -127, out=blocks[:, 2:].view(np.int8))
    elif name == "tq2_0":  # of the four numbers of two bits it has three
        fours = blocks[:, :64]
        fours &= ~(fours & (fours >> np.uint8(1)) & np.uint8(0x55))


def _spread_over_nibbles(blocks: Bytes, table: NDArray[np.uint16]) -> None:
    """IQ1_M has its float16 in the top nibbles of its last four words."""
    scale = np.take(table, blocks[:, 49] >> np.uint8(4))[:, None]
    words = blocks[:, 48:56].copy().view("<u2")
    nibbles = (scale >> np.array([0, 4, 8, 12], np.uint16)) & np.uint16(15)
    blocks[:, 48:56] = ((words & np.uint16(0x0FFF)) | (nibbles << np.uint16(12))).view(np.uint8)


def _with_byte_scales(format: Format, deviation: float) -> _Fill:
    """Blocks that all have the same scale, the byte nearest to the deviation."""
    count = _BYTES[format.name]
    sample = _random(np.random.Generator(np.random.SFC64(0)), format, SAMPLE_BLOCKS)
    candidates = []
    for byte in range(128):  # the upper half is no smaller, or has another sign
        sample[:, :count] = byte
        spread = _spread(format, sample)
        if np.isfinite(spread) and spread > 0:
            candidates.append((abs(np.log(spread / deviation)), byte))
    nearest = min(candidates)[1]

    def fill(generator: np.random.Generator, n_blocks: int) -> Bytes:
        blocks = _random(generator, format, n_blocks)
        blocks[:, :count] = nearest
        return blocks

    return fill


def formats() -> list[str]:
    """The formats that can be filled: all that files store weights in."""
    return [name for name in graphml_quant.formats() if name not in ("q8_1", "q8_k")]
